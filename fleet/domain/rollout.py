"""The way of a model from one revision to another: ask the node, then one replica after another, back at a failure.

With room to spare a substitute becomes ready before the old replica ends; without, one is drained while the others
serve. What serves nobody is not protected. Going back takes the same way, without questions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from agent_client.profile import Arrangement, Profile
from fleet.domain.actions import Action, AskNode, CreateReplica, EndRollout, SetGoal
from fleet.domain.placement import Placement, ShardPlacement
from fleet.domain.room import Room
from fleet.domain.states import CheckState, ReplicaState, RolloutState
from fleet.domain.types import ModelView, ReplicaView, RolloutView

#: What the control plane alone reads: a running engine need not be told.
NO_RESTART = frozenset({"start_timeout_seconds", "drain_timeout_seconds", "priority", "preempts", "arrangement"})


def needs_restart(before: Profile, after: Profile, *, names_changed: bool) -> bool:
    """Whether running engines differ between two revisions. Engines know their names: an alias is one of them."""
    if names_changed:
        return True
    changed = {item.name for item in fields(Profile) if getattr(before, item.name) != getattr(after, item.name)}
    return bool(changed - NO_RESTART)


@dataclass(slots=True, kw_only=True)
class Step:
    """What else a rollout looks at, and what it promises in this tick."""

    room: Room
    number: Callable[[], int]  # the next free number for a replica


def roll(model: ModelView, replicas: list[ReplicaView], step: Step) -> list[Action]:
    """One step of one model. `replicas` are those that are kept, substitutes among them."""
    rollout = model.rollout
    if rollout is None:
        return _bring(model, replicas, model.stable, step, rollout=None)
    if rollout.state is RolloutState.PAUSED:
        return []
    if ended := _ended(rollout, replicas):
        return [ended]
    return _bring(model, replicas, rollout.target, step, rollout=rollout)


def outdated(model: ModelView, replica: ReplicaView) -> bool:
    """Whether a substitute of another revision may take over from it."""
    rollout = model.rollout
    if rollout is None:
        return heads_for(replica) != model.stable
    return rollout.state is RolloutState.PAUSED or heads_for(replica) != rollout.target


def dropped(model: ModelView, substitute: ReplicaView) -> bool:
    """Whether what it was to bring in is not what is brought in now."""
    wished = model.stable if model.rollout is None else model.rollout.target
    return heads_for(substitute) != wished


def _ended(rollout: RolloutView, replicas: list[ReplicaView]) -> EndRollout | None:
    for replica in replicas:
        if replica.revision == rollout.target and replica.failure:
            reason = f"{replica.label} failed at revision {rollout.target}: {replica.failure}"
            return EndRollout(rollout=rollout.pk, state=RolloutState.FAILED, reason=reason)
    for check in rollout.checks.values():
        if check.state is CheckState.REFUSED:
            return EndRollout(rollout=rollout.pk, state=RolloutState.FAILED, reason=check.text)
    if all(heads_for(each) == rollout.target for each in replicas) and not _moving(replicas, rollout.target):
        return EndRollout(rollout=rollout.pk, state=RolloutState.DONE)
    return None


def _bring(
    model: ModelView, replicas: list[ReplicaView], target: int, step: Step, *, rollout: RolloutView | None
) -> list[Action]:
    """Move what serves nobody at once, and of the others one, when nothing else is on its way."""
    behind = [each for each in replicas if heads_for(each) != target and each.replaces is None]
    idle: list[Action] = [SetGoal(replica=each.pk, revision=target) for each in behind if not serves(each)]
    serving = [each for each in behind if serves(each)]
    if idle or not serving or _moving(replicas, target) or any(each.replaces is not None for each in replicas):
        return idle
    return _replace(model, _next(model, serving, replicas, target, step), target, step, rollout)


def _next(
    model: ModelView, serving: list[ReplicaView], replicas: list[ReplicaView], target: int, step: Step
) -> ReplicaView:
    """The oldest; where copies are spread, of the node with the least room for them.

    A substitute takes the spare card of one node and leaves that of the old copy's node to the next one. The last card
    to become spare is to be where there is one card more, or copies that were spread evenly are so no longer.
    """
    profile = model.profile_of(target)
    room: Mapping[int, int] = {}
    if profile is not None and profile.arrangement is Arrangement.SPREAD and profile.gpus_total:
        room = step.room.room_of(replicas)
    return min(
        serving,
        key=lambda each: (sum(room.get(shard.node, 0) for shard in each.shards), each.created_at, each.pk),
    )


def _replace(model: ModelView, old: ReplicaView, target: int, step: Step, rollout: RolloutView | None) -> list[Action]:
    profile = model.profile_of(target)
    if profile is None:
        return []
    found = step.room.place(profile, model=model.pk, instead_of=old)
    surge = isinstance(found, Placement)
    parts = found.shards if isinstance(found, Placement) else _own_parts(old, step.room)
    if rollout is not None:
        asked = [
            _ask(model, rollout, part, None if surge else old) for part in parts if part.node not in rollout.checks
        ]
        if asked:
            return [*asked]
        if any(rollout.checks[part.node].state is CheckState.OPEN for part in parts):
            return []
    if isinstance(found, Placement):
        step.room.promise(found, model=model.pk)
        return [CreateReplica(model=model.pk, number=step.number(), revision=target, replaces=old.pk)]
    return [SetGoal(replica=old.pk, revision=target)]


def _ask(model: ModelView, rollout: RolloutView, part: ShardPlacement, old: ReplicaView | None) -> Action:
    return AskNode(
        rollout=rollout.pk,
        model=model.pk,
        revision=rollout.target,
        part=part,
        replaces=None if old is None else old.pk,
    )


def _own_parts(replica: ReplicaView, room: Room) -> tuple[ShardPlacement, ...]:
    """Where it is now: its own cards are the ones that it will free."""
    shards = [shard for shard in replica.shards if shard.epoch == replica.attempt]
    return tuple(
        ShardPlacement(rank=shard.rank, node=shard.node, node_name="", gpus=room.cards_of(shard.pk)) for shard in shards
    )


def heads_for(replica: ReplicaView) -> int:
    return replica.revision if replica.goal is None else replica.goal


def serves(replica: ReplicaView) -> bool:
    return replica.state in (ReplicaState.READY, ReplicaState.DRAINING)


def _moving(replicas: list[ReplicaView], target: int) -> bool:
    """One is on its way to the target, or ends. What fits nowhere is not: it may wait for ever."""
    return any(heads_for(each) == target and not settled(each, target) for each in replicas)


def settled(replica: ReplicaView, target: int) -> bool:
    if replica.state is ReplicaState.READY:
        return replica.revision == target
    return replica.state is ReplicaState.PENDING and bool(replica.explanation_text)
