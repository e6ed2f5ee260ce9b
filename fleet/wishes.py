"""What is wished and what runs, without the machines: rows → models and replicas, in a fixed number of queries.

Most ticks need no more than this; fleet.snapshots adds the nodes when something is to be placed.
"""

import json
from collections import defaultdict
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db.models import F, Q

from agent_client.engines.causes import NODE_LOCAL_CAUSES
from agent_client.profile import Profile, ProfileError, parse_profile
from agent_client.protocol.states import ENDED_SHARD_STATES, NODE_LOCAL_FAILURES, ShardState
from fleet.domain.states import CheckState, NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import (
    CheckView,
    FleetSnapshot,
    FlowView,
    ModelView,
    ReplicaView,
    RolloutView,
    ShardView,
)
from fleet.models import CatalogModel, DryCheck, GpuClaim, Node, ProfileRevision, Replica, Rollout, Shard

#: After a failure with one of these another node is tried once.
NODE_LOCAL = frozenset(NODE_LOCAL_FAILURES) | NODE_LOCAL_CAUSES
#: A machine that was switched off says nothing of the revision that ran on it.
NOT_THE_REVISION = frozenset({"node_rebooted"})


def load_wishes() -> FleetSnapshot:
    """Ten queries; `nodes` is empty."""
    names = dict(Node.objects.values_list("name", "pk"))
    rows = Node.objects.values_list("pk", "drain_deadline_at").filter(drain_deadline_at__isnull=False)
    draining = {pk: at for pk, at in rows if at is not None}
    shards = _shards(draining)
    return FleetSnapshot(models=_models(), replicas=_replicas(shards, names), draining=tuple(sorted(draining)))


_SHARD_FIELDS = (
    *("pk", "rank", "epoch", "node_id", "state", "wanted", "replica_id", "node__status", "draining"),
    *("drain_deadline_at", "state_at", "moved_at", "stalled_at", "running", "rendezvous_port", "pids"),
)


def _shards(draining_nodes: dict[int, datetime]) -> dict[int, list[ShardView]]:
    """By replica: every one that has not ended, and those of the newest attempt."""
    live = Shard.objects.exclude(state__in=ENDED_SHARD_STATES)
    newest = Shard.objects.filter(state__in=ENDED_SHARD_STATES, epoch__gt=0).filter(Q(epoch=F("replica__attempt")))
    drained_cards = dict(
        GpuClaim.objects.filter(released_at__isnull=True, gpu__drain_deadline_at__isnull=False)
        .order_by("-gpu__drain_deadline_at")
        .values_list("shard_id", "gpu__drain_deadline_at")
    )
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
    used = ProfileRevision.objects.filter(
        Q(replicas__isnull=False) | Q(number=F("model__stable_revision")) | Q(number=F("model__revision"))
    )
    profiles: dict[int, dict[int, Profile]] = defaultdict(dict)
    for model_id, number, data in used.values_list("model_id", "number", "profile").distinct():
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
    checks: dict[int, dict[int, CheckView]] = defaultdict(dict)
    asked = DryCheck.objects.filter(rollout__state__in=still_open)
    for rollout, node, name, state, detail in asked.values_list("rollout", "node", "node__name", "state", "detail"):
        checks[rollout][node] = CheckView(state=CheckState(state), text=f"{name}: {detail}")
    rows = Rollout.objects.filter(state__in=still_open).values_list("pk", "model", "target", "state")
    return {
        model: RolloutView(pk=pk, target=target, state=RolloutState(state), checks=checks[pk])
        for pk, model, target, state in rows
    }


_REPLICA_FIELDS = (
    *("pk", "model_id", "model__name", "number", "wish", "state", "attempt", "revision__number", "created_at"),
    *("next_try_at", "restart_requested", "goal", "drain_deadline_at", "replaces_id", "explanation", "reason"),
    *("latest_failure", "flow__attempt", "flow__in_flight", "flow__moved_at"),
)


def _replicas(shards: dict[int, list[ShardView]], names: dict[str, int]) -> tuple[ReplicaView, ...]:
    out = []
    for value in Replica.objects.order_by("model__name", "number").values(*_REPLICA_FIELDS):
        pk, attempt = value["pk"], value["attempt"]
        failure = _failure(value)
        local = failure.get("code") in NODE_LOCAL
        blamed = bool(failure) and failure.get("code") not in NOT_THE_REVISION
        flow = None
        if value["flow__attempt"] == attempt and value["flow__moved_at"] is not None:
            flow = FlowView(in_flight=value["flow__in_flight"], moved_at=value["flow__moved_at"])
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
