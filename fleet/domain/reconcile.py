"""What to do next so that the fleet becomes what is wished: snapshot in, actions out; idempotent."""

from dataclasses import dataclass
from datetime import datetime

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain import backoff
from fleet.domain.placement import Placement, place
from fleet.domain.reasons import Refusal
from fleet.domain.states import ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, ModelView, ReplicaView, ShardView


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateReplica:
    model: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReplica:
    """Scaled down: stop it and delete it when its shards have ended."""

    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReplica:
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShard:
    shard: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplica:
    replica: int
    attempt: int  # the one that it replaces; another value in the row means a lost race
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    replica: int
    refusal: Refusal


Action = CreateReplica | RemoveReplica | DeleteReplica | StopShard | StartReplica | Explain


def reconcile(snapshot: FleetSnapshot, now: datetime) -> tuple[Action, ...]:
    """The actions of one tick, in the order in which to do them."""
    models = {model.pk: model for model in snapshot.models}
    actions: list[Action] = []
    going: set[int] = set()
    for model in sorted(snapshot.models, key=lambda each: each.pk):
        actions += _scale(model, [r for r in snapshot.replicas if r.model == model.pk], going)
    taken: set[int] = set()
    replicas = sorted(snapshot.replicas, key=lambda each: (each.created_at, each.pk))
    updating = _updating(replicas, models)
    for replica in replicas:
        owner = models.get(replica.model)
        if owner is None or replica.wish is ReplicaWish.REMOVE or replica.pk in going:
            actions += _end(replica)
        elif replica.wish is ReplicaWish.STOP:
            actions += _stop_all(replica, "stopped by wish")
        else:
            actions += _keep(snapshot, replica, owner, now, taken, update=replica.pk in updating)
    return tuple(actions)


def _scale(model: ModelView, replicas: list[ReplicaView], going: set[int]) -> list[Action]:
    kept = [replica for replica in replicas if replica.wish is not ReplicaWish.REMOVE]
    actions: list[Action] = []
    used = {replica.number for replica in replicas}
    for _ in range(model.replicas - len(kept)):
        number = next(n for n in range(1, len(used) + 2) if n not in used)
        used.add(number)
        actions.append(CreateReplica(model=model.pk, number=number))
    # Not ready first, then the youngest.
    order = sorted(kept, key=lambda r: (r.state is ReplicaState.READY, -r.created_at.timestamp(), -r.pk))
    for replica in order[: max(len(kept) - model.replicas, 0)]:
        going.add(replica.pk)
        actions.append(RemoveReplica(replica=replica.pk))
    return actions


def _updating(replicas: list[ReplicaView], models: dict[int, ModelView]) -> set[int]:
    """Replicas of an older revision that may be replaced now: one of a model at a time, while the others serve."""
    chosen: dict[int, ReplicaView] = {}
    for replica in replicas:
        model = models.get(replica.model)
        if model is None or replica.wish is not ReplicaWish.RUN or replica.revision >= model.revision:
            continue
        if replica.state is not ReplicaState.READY:
            chosen[-replica.pk] = replica  # it serves nobody: at once
        elif model.pk not in chosen and all(
            other.state is ReplicaState.READY for other in replicas if other.model == model.pk and other is not replica
        ):
            chosen[model.pk] = replica
    return {replica.pk for replica in chosen.values()}


def _end(replica: ReplicaView) -> list[Action]:
    actions = _stop_all(replica, "its replica is removed")
    if not _live(replica):
        actions.append(DeleteReplica(replica=replica.pk))
    return actions


def _keep(
    snapshot: FleetSnapshot, replica: ReplicaView, model: ModelView, now: datetime, taken: set[int], *, update: bool
) -> list[Action]:
    newest = [shard for shard in replica.shards if shard.epoch == replica.attempt]
    older = [shard for shard in _live(replica) if shard.epoch < replica.attempt]
    actions: list[Action] = [
        StopShard(shard=shard.pk, reason="its attempt was replaced") for shard in older if shard.wanted
    ]
    broken = any(shard.state in (ShardState.FAILED, ShardState.STOPPED, ShardState.LOST) for shard in newest)
    again = replica.restart_requested or update or broken
    live = [shard for shard in newest if shard.state not in ENDED_SHARD_STATES and shard.state is not ShardState.LOST]
    if again and live:
        why = "restart" if replica.restart_requested else "another rank ended" if broken else "a new revision"
        return actions + [StopShard(shard=shard.pk, reason=why) for shard in live if shard.wanted]
    if newest and not again:
        return actions
    if backoff.waits(replica.next_try_at, now) and not replica.restart_requested and not update:
        return actions
    if [shard for shard in older if shard.state is not ShardState.LOST]:
        return actions  # its engines may still hold cards or a port
    return actions + _try(snapshot, replica, model, taken)


def _try(snapshot: FleetSnapshot, replica: ReplicaView, model: ModelView, taken: set[int]) -> list[Action]:
    if model.profile is None:
        refusal = Refusal(
            code="invalid_profile", text=f"the profile of {model.name} can't be used: {model.profile_error}"
        )
        return _explained(replica, refusal)
    avoid = () if replica.avoid_node is None else (replica.avoid_node,)
    found = place(snapshot, model.profile, avoid=avoid, taken=taken)
    if isinstance(found, Refusal):
        return _explained(replica, found)
    taken.update(found.gpus)
    return [StartReplica(replica=replica.pk, attempt=replica.attempt, placement=found)]


def _explained(replica: ReplicaView, refusal: Refusal) -> list[Action]:
    return [] if replica.explanation_text == refusal.text else [Explain(replica=replica.pk, refusal=refusal)]


def _live(replica: ReplicaView) -> list[ShardView]:
    return [shard for shard in replica.shards if shard.state not in ENDED_SHARD_STATES]


def _stop_all(replica: ReplicaView, reason: str) -> list[Action]:
    return [StopShard(shard=shard.pk, reason=reason) for shard in _live(replica) if shard.wanted]
