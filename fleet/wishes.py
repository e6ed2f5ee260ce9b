"""What is wished and what runs, without the machines: rows → models and replicas, in a fixed number of queries.

Most ticks need no more than this; fleet.snapshots adds the nodes when something is to be placed.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q

from agent_client.engines.causes import NODE_LOCAL_CAUSES
from agent_client.profile import Profile, ProfileError, parse_profile
from agent_client.protocol.states import ENDED_SHARD_STATES, NODE_LOCAL_FAILURES, ShardState
from fleet.domain.states import NODE_REBOOTED, CheckState, NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import (
    CheckView,
    FleetSnapshot,
    FlowView,
    ModelView,
    ReplicaView,
    RolloutView,
    ShardView,
)
from fleet.models import CatalogModel, DryCheck, Gpu, GpuClaim, Node, ProfileRevision, Replica, Rollout, Shard

#: After a failure with one of these another node is tried once.
NODE_LOCAL = frozenset(NODE_LOCAL_FAILURES) | NODE_LOCAL_CAUSES
#: A machine that was switched off says nothing of the revision that ran on it.
NOT_THE_REVISION = frozenset({NODE_REBOOTED})


def load_wishes(*, unsettled_only: bool = False) -> FleetSnapshot:
    """A dozen queries; `nodes` is empty.

    `unsettled_only`: replicas of models that may need something, and of those that these name as neighbours. What is
    settled is most of a fleet, and a tick has nothing to do for it.
    """
    rows = Node.objects.values_list("pk", "drain_deadline_at").filter(drain_deadline_at__isnull=False)
    draining = {pk: at for pk, at in rows.order_by() if at is not None}
    models, evacuated = _models(), _drained_cards()
    scope, points = None, frozenset[tuple[int, int]]()
    if unsettled_only:
        scope = _with_neighbours(models, _unsettled(models, draining, evacuated))
        points = _meeting_points(models, scope)
    return FleetSnapshot(
        models=models,
        replicas=_replicas(_shards(draining, evacuated, scope), scope),
        draining=tuple(sorted(draining)),
        scope=scope,
        meeting_points=points,
    )


def _unsettled(models: tuple[ModelView, ...], draining: Collection[int], evacuated: Collection[int]) -> set[int]:
    """Counted by the database: a few models too many are no harm, one too few would wait for the next whole tick.

    fleet.domain.settled says the same of loaded rows.
    """
    resting = Q(wish=ReplicaWish.RUN, state=ReplicaState.READY, goal=None, restart_requested=False, replaces=None)
    resting &= Q(revision__number=F("model__stable_revision"))
    replicas = {
        model: (rows, rest)
        for model, rows, rest in Replica.objects.order_by()
        .values_list("model")
        .annotate(rows=Count("pk"), rest=Count("pk", filter=resting))
    }
    serving = Q(state=ShardState.READY, wanted=True, draining=False, stalled_at=None, epoch=F("replica__attempt"))
    if draining:
        serving &= ~Q(node__in=draining)
    if evacuated:
        serving &= ~Q(pk__in=evacuated)
    live = Shard.objects.exclude(state__in=ENDED_SHARD_STATES).order_by().values_list("replica__model")
    shards = {
        model: (rows, serve, heads)
        for model, rows, serve, heads in live.annotate(
            rows=Count("pk"), serve=Count("pk", filter=serving), heads=Count("pk", filter=serving & Q(rank=0))
        )
    }
    ended = Shard.objects.filter(replica=OuterRef("pk"), rank__gt=0, epoch=OuterRef("attempt"))
    broken = Replica.objects.filter(Exists(ended.filter(state__in=ENDED_SHARD_STATES)), state=ReplicaState.READY)
    found = set(broken.order_by().values_list("model", flat=True))
    managed = {model.pk: model for model in models}
    for pk in managed.keys() | replicas.keys():
        model = managed.get(pk)
        copies, rest = replicas.get(pk, (0, 0))
        rows, serve, heads = shards.get(pk, (0, 0, 0))
        if model is None or model.rollout is not None or not copies == rest == heads == model.replicas or rows != serve:
            found.add(pk)
    return found


def _with_neighbours(models: tuple[ModelView, ...], scope: Collection[int]) -> frozenset[int]:
    """Where the models run that an affinity names decides as well."""
    by_name = {model.name: model.pk for model in models}
    profiles = [profile for model in models if model.pk in scope for profile in model.profiles]
    names = {name for profile in profiles for name in (*profile.affinity, *profile.anti_affinity)}
    return frozenset(scope) | {by_name[name] for name in names if name in by_name}


def _meeting_points(models: tuple[ModelView, ...], scope: Collection[int]) -> frozenset[tuple[int, int]]:
    """Ports that replicas out of scope hold on their heads' nodes, if anything in scope may want one."""
    if not any(profile.nodes > 1 for model in models if model.pk in scope for profile in model.profiles):
        return frozenset()
    heads = Shard.objects.filter(rank=0, rendezvous_port__isnull=False).exclude(state__in=ENDED_SHARD_STATES)
    rows = heads.exclude(replica__model__in=scope).order_by().values_list("node", "rendezvous_port")
    return frozenset((node, port) for node, port in rows if port is not None)


_SHARD_FIELDS = (
    *("pk", "rank", "epoch", "node_id", "state", "wanted", "replica_id", "node__status", "draining"),
    *("drain_deadline_at", "state_at", "moved_at", "stalled_at", "running", "rendezvous_port", "pids"),
)


def _drained_cards() -> dict[int, datetime]:
    """Shard → the first deadline of a drain of one of its cards."""
    drained = Gpu.objects.filter(drain_deadline_at__isnull=False)
    rows = GpuClaim.objects.filter(released_at__isnull=True, gpu__in=drained).order_by("-gpu__drain_deadline_at")
    # Hardly ever is a card drained, and seeing that needs no look at all the claims.
    found = rows.values_list("shard_id", "gpu__drain_deadline_at") if drained.exists() else ()
    return {shard: at for shard, at in found if at is not None}


def _shards(
    draining_nodes: Mapping[int, datetime], drained_cards: Mapping[int, datetime], scope: Collection[int] | None
) -> dict[int, list[ShardView]]:
    """By replica: every one that has not ended, and those of the newest attempt."""
    all_shards = Shard.objects.order_by()
    if scope is not None:
        all_shards = all_shards.filter(replica__model__in=scope)
    live = all_shards.exclude(state__in=ENDED_SHARD_STATES)
    newest = all_shards.filter(state__in=ENDED_SHARD_STATES, epoch__gt=0).filter(Q(epoch=F("replica__attempt")))
    out: dict[int, list[ShardView]] = defaultdict(list)
    for rows in (live, newest):
        for row in rows.values_list(*_SHARD_FIELDS):
            pk, rank, epoch, node, state, wanted, replica, status, draining, until, since, moved, stalled, *rest = row
            leaving = [at for at in (draining_nodes.get(node), drained_cards.get(pk)) if at is not None]
            out[replica].append(
                ShardView(
                    pk=pk,
                    rank=rank,
                    epoch=epoch,
                    node=node,
                    state=ShardState(state),
                    wanted=wanted,
                    node_ready=status == NodeStatus.READY,
                    draining=draining,
                    drain_deadline_at=until,
                    evacuate_at=min(leaving, default=None),
                    moved_at=max(since, moved or since),
                    stalled_at=stalled,
                    running=rest[0],
                    rendezvous_port=rest[1],
                    pids=tuple(pid for pid in rest[2] if isinstance(pid, int)),
                )
            )
    return out


def _models() -> tuple[ModelView, ...]:
    runs = Exists(Replica.objects.filter(revision=OuterRef("pk")))
    used = ProfileRevision.objects.filter(
        runs | Q(number=F("model__stable_revision")) | Q(number=F("model__revision"))
    ).order_by()
    profiles: dict[int, dict[int, Profile]] = defaultdict(dict)
    for model_id, number, data in used.values_list("model_id", "number", "profile"):
        profile, _ = _profile(json.dumps(data))
        if profile is not None:
            profiles[model_id][number] = profile
    rollouts = _rollouts()
    out = []
    fields = ("pk", "name", "replicas", "revision", "stable_revision", "profile")
    for pk, name, replicas, revision, stable, data in CatalogModel.objects.filter(profile__isnull=False).values_list(
        *fields
    ):
        profile, error = _profile(json.dumps(data))
        out.append(
            ModelView(
                pk=pk,
                name=name,
                replicas=replicas,
                revision=revision,
                profile=profile,
                profile_error=error,
                stable=stable,
                rollout=rollouts.get(pk),
                older=profiles[pk],
            )
        )
    return tuple(out)


@lru_cache(maxsize=4096)
def _profile(text: str) -> tuple[Profile | None, str]:
    """Profiles change seldom and are read at each tick."""
    try:
        return parse_profile(json.loads(text)), ""
    except ProfileError as wrong:
        return None, str(wrong)


def _rollouts() -> dict[int, RolloutView]:
    """Open ones, by model."""
    still_open = (RolloutState.ROLLING, RolloutState.PAUSED)
    rows = list(Rollout.objects.filter(state__in=still_open).values_list("pk", "model", "target", "state"))
    checks: dict[int, dict[int, CheckView]] = defaultdict(dict)
    asked = DryCheck.objects.filter(rollout__in=[pk for pk, *_ in rows])
    for rollout, node, name, state, detail in asked.values_list("rollout", "node", "node__name", "state", "detail"):
        checks[rollout][node] = CheckView(state=CheckState(state), text=f"{name}: {detail}")
    return {
        model: RolloutView(pk=pk, target=target, state=RolloutState(state), checks=checks[pk])
        for pk, model, target, state in rows
    }


_REPLICA_FIELDS = (
    *("pk", "model_id", "model__name", "number", "wish", "state", "attempt", "revision__number", "created_at"),
    *("next_try_at", "restart_requested", "goal", "drain_deadline_at", "replaces_id", "explanation", "reason"),
    *("latest_failure", "flow__attempt", "flow__in_flight", "flow__moved_at", "flow__seen_at"),
)


def _replicas(shards: dict[int, list[ShardView]], scope: Collection[int] | None) -> tuple[ReplicaView, ...]:
    out = []
    rows = Replica.objects.order_by("model__name", "number")
    values = list((rows if scope is None else rows.filter(model__in=scope)).values(*_REPLICA_FIELDS))
    failed_on = {str(_failure(value).get("node")) for value in values if value["latest_failure"]}
    names = dict(Node.objects.filter(name__in=failed_on).order_by().values_list("name", "pk")) if failed_on else {}
    for value in values:
        pk, attempt = value["pk"], value["attempt"]
        failure = _failure(value)
        local = failure.get("code") in NODE_LOCAL
        blamed = bool(failure) and failure.get("code") not in NOT_THE_REVISION
        flow = None
        if value["flow__attempt"] == attempt and value["flow__moved_at"] is not None:
            flow = FlowView(
                in_flight=value["flow__in_flight"], moved_at=value["flow__moved_at"], seen_at=value["flow__seen_at"]
            )
        out.append(
            ReplicaView(
                pk=pk,
                label=f"{value['model__name']}/{value['number']}",
                model=value["model_id"],
                number=value["number"],
                wish=ReplicaWish(value["wish"]),
                state=ReplicaState(value["state"]),
                attempt=attempt,
                revision=value["revision__number"],
                created_at=value["created_at"],
                next_try_at=value["next_try_at"],
                restart_requested=value["restart_requested"],
                goal=value["goal"],
                drain_deadline_at=value["drain_deadline_at"],
                replaces=value["replaces_id"],
                failure=str(failure.get("reason") or failure.get("code") or "it failed") if blamed else "",
                flow=flow,
                explanation_text=(value["explanation"] or {}).get("text", ""),
                helps=next((p.get("text", "") for p in (value["explanation"] or {}).get("proposals", [])), ""),
                reason=value["reason"],
                avoid_node=names.get(str(failure.get("node"))) if local else None,
                shards=tuple(sorted(shards.get(pk, []), key=lambda s: (s.epoch, s.rank))),
            )
        )
    return tuple(out)


def _failure(value: dict[str, Any]) -> dict[str, Any]:
    """Of the newest attempt; empty when that has not failed."""
    failure = value["latest_failure"] or {}
    return failure if failure.get("attempt") == value["attempt"] and value["attempt"] else {}
