"""Where each copy of a model runs, or why it can't: computed now, so that it is true even when nothing reconciles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from agent_client.profile import Profile
from agent_client.profile.config_json import facts_of_config
from agent_client.profile.model_facts import FactsError, ModelFacts
from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import clock, snapshots
from fleet.domain.placement import Placement, place
from fleet.domain.placement_env import effective, settings
from fleet.domain.placement_types import Setting
from fleet.domain.reasons import Refusal
from fleet.domain.room import SnapshotRoom
from fleet.domain.states import ReplicaState
from fleet.domain.types import FleetSnapshot, ModelView
from fleet.domain.waiting import rollout_waits
from fleet.models import CatalogModel, Gpu, Replica, Rollout
from fleet.services import catalog
from fleet.services.errors import FleetError
from fleet.services.rollouts import OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyExplanation:
    label: str
    state: ReplicaState
    reason: str  # of the state, in a sentence
    where: tuple[str, ...]  # "gpu-07 GPU 0, 1", and for how long its node has been silent
    refusal: Refusal | None = None  # of placement, when nothing of it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExplanation:
    """`another` says where one more copy would go, claims and free memory being as they are now. `rollout`: why its
    copies do not run the newest revision."""

    name: str
    wanted: int
    rollout: str
    copies: tuple[CopyExplanation, ...]
    another: Placement | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One rank as it would start: its cards by number and UUID, and its whole environment with origins."""

    rank: int
    node: str
    gpus: tuple[tuple[int, str], ...]
    environment: tuple[Setting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one more copy of a profile would get now."""

    name: str
    found: Placement | Refusal
    ranks: tuple[RankPlan, ...] = ()
    preempts: tuple[str, ...] = ()  # labels of replicas that would have to end


def plan(name: str, *, draft: Any = None, config: Any = None) -> Plan:
    """For a draft before it is saved, or for the stored profile. `config`: the model's config.json, if it is at hand.

    Raises FleetError when the draft can't be read, or when there is neither a draft nor a model of that name.
    """
    snapshot = snapshots.load()
    found = CatalogModel.objects.filter(served_names__name=name).first()
    stored = next((each for each in snapshot.models if found and each.pk == found.pk), None)
    if draft is not None:
        profile = _draft(name, draft)
    elif stored is None:
        raise FleetError("model_unknown", f"cannot plan {name}: no such model in the catalog", _known(name))
    elif stored.profile is None:
        raise FleetError("invalid_profile", f"cannot plan {name}: {stored.profile_error}")
    else:
        profile = stored.profile
    facts = _facts(config)
    answer = place(snapshot, profile, model=stored.pk if stored else None, facts=facts)
    labels = {replica.pk: replica.label for replica in snapshot.replicas}
    if isinstance(answer, Refusal):
        return Plan(name=name, found=answer)
    return Plan(
        name=name,
        found=answer,
        ranks=_ranks(snapshot, profile, answer),
        preempts=tuple(labels[pk] for pk in answer.preempts),
    )


def _draft(name: str, data: Any) -> Profile:
    """As it would be saved."""
    try:
        profile = catalog.read_entry({"name": name, "profile": data}).profile
    except FleetError as error:
        raise FleetError("invalid_profile", error.detail, error.hint) from None
    assert profile is not None
    return profile


def _facts(config: Any) -> ModelFacts | None:
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise FleetError("invalid_config", "cannot use model_config: the object of a config.json is needed")
    try:
        return facts_of_config(config)
    except FactsError as error:
        raise FleetError("invalid_config", f"cannot use model_config: {error}") from None


def _ranks(snapshot: FleetSnapshot, profile: Profile, found: Placement) -> tuple[RankPlan, ...]:
    nodes = {node.pk: node for node in snapshot.nodes}
    members = [nodes[shard.node] for shard in found.shards]
    several = len(members) > 1
    out = []
    for shard, node in zip(found.shards, members, strict=True):
        cards = {gpu.pk: (gpu.index, gpu.uuid) for gpu in node.gpus}
        rows = settings(profile, node, found.fabric, members) if several else ()
        out.append(
            RankPlan(
                rank=shard.rank,
                node=shard.node_name,
                gpus=tuple(cards[pk] for pk in shard.gpus),
                environment=effective(profile, rows),
            )
        )
    return tuple(out)


def explain(name: str) -> ModelExplanation:
    """Raises FleetError when there is no model of that name or alias that llmgw runs."""
    snapshot = snapshots.load()
    found = CatalogModel.objects.filter(served_names__name=name).first()
    model = next((each for each in snapshot.models if found and each.pk == found.pk), None)
    if model is None:
        raise FleetError("no_model", f"cannot explain {name}: no such model in the catalog", _known(name))
    found_for = cache(partial(_place, snapshot, model))
    another = found_for(model.stable)  # new copies run what the others do, until a rollout is done
    related = ("shards__node", "shards__claims__gpu")
    rows = Replica.objects.filter(model=model.pk).select_related("revision").prefetch_related(*related)
    silent = {node.pk: node.silent_seconds or 0.0 for node in snapshot.nodes if not node.heard}
    copies = tuple(_copy(row, found_for, silent) for row in rows.order_by("number"))
    return ModelExplanation(
        name=model.name, wanted=model.replicas, rollout=_rollout(model, snapshot), copies=copies, another=another
    )


def _place(snapshot: FleetSnapshot, model: ModelView, revision: int) -> Placement | Refusal:
    profile = model.profile_of(revision)
    if profile is not None:
        return place(snapshot, profile, model=model.pk)
    return Refusal(code="invalid_profile", text=model.why_unusable(revision))


def why_rollout_waits(rollout: Rollout) -> str:
    """In a sentence, by what is there now; empty for one that is over or has nothing to wait for."""
    if rollout.state not in OPEN:
        return ""
    snapshot = snapshots.load()
    model = next((each for each in snapshot.models if each.pk == rollout.model_id), None)
    return "" if model is None else _waits(model, snapshot)


def _waits(model: ModelView, snapshot: FleetSnapshot) -> str:
    return rollout_waits(model, snapshot, clock.now(), room=SnapshotRoom(snapshot))


def _rollout(model: ModelView, snapshot: FleetSnapshot) -> str:
    if model.revision == model.stable:
        return ""
    latest = Rollout.objects.filter(model=model.pk, target=model.revision).order_by("-pk").first()
    why = f"; the rollout to it: {latest.state}" + (f", {latest.reason}" if latest.reason else "") if latest else ""
    waits = _waits(model, snapshot)
    told = f"revision {model.revision} is wished, revision {model.stable} runs{why}"
    return f"{told}; {waits}" if waits else told


def _copy(
    replica: Replica, found_for: Callable[[int], Placement | Refusal], silent: Mapping[int, float]
) -> CopyExplanation:
    """`silent`: nodes that are not heard, for how many seconds: what is told of them is what was last known."""
    live = [shard for shard in replica.shards.all() if shard.state not in ENDED_SHARD_STATES]
    where = []
    for shard in sorted(live, key=lambda each: (each.epoch, each.rank)):
        held = [claim.gpu for claim in shard.claims.all() if claim.released_at is None]
        cards = [gpu.uuid if gpu.index is None else str(gpu.index) for gpu in sorted(held, key=_by_index)]
        unheard = f" (silent for {silent[shard.node_id]:.0f} s)" if shard.node_id in silent else ""
        where.append(shard.node.name + (f" GPU {', '.join(cards)}" if cards else "") + unheard)
    found = None if where else found_for(replica.goal or replica.revision.number)
    return CopyExplanation(
        label=replica.label,
        state=ReplicaState(replica.state),
        reason=replica.reason,
        where=tuple(where),
        refusal=found if isinstance(found, Refusal) else None,
    )


def _by_index(gpu: Gpu) -> tuple[int, str]:
    return (-1 if gpu.index is None else gpu.index, gpu.uuid)


def _known(name: str) -> str:
    names = list(
        CatalogModel.objects.filter(profile__isnull=False).order_by("name").values_list("name", flat=True)[:20]
    )
    return f"the catalog has {', '.join(names)}" if names else "the catalog is empty: manage.py catalog apply FILE"
