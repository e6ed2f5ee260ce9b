"""What needs a person, and what is in hand: each thing with why, what happens next by itself, and what can be done."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import FleetSnapshot, ModelView, NodeView, ReplicaView
from fleet.domain.waiting import rollout_waits
from fleet.domain.words import counted, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to know: what, why, and what happens next by itself."""

    kind: str  # "node", "replica" or "rollout": whose page tells more
    pk: int
    title: str
    text: str = ""
    following: str = ""
    acts: tuple[tuple[str, str], ...] = ()  # what can be done there: action and label, the best one first


_REPLICA_NEEDS = frozenset({ReplicaState.FAILED})
_HAND = frozenset(ReplicaState) - {ReplicaState.READY, ReplicaState.STOPPED, ReplicaState.FAILED}
_NODE_NEXT = {
    NodeStatus.LOST: "nothing happens by itself: start its agent again, or delete the node",
    NodeStatus.QUARANTINED: "nothing happens by itself: see the node's page, then release it",
    NodeStatus.UNREACHABLE: "its engines stay routable",
    NodeStatus.JOINING: "it is ready once it answers on its stream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The rollout of a model's newest revision, which its copies do not run because it failed."""

    pk: int
    target: int
    reason: str


def attention(
    snapshot: FleetSnapshot,
    now: datetime,
    loading: Mapping[int, str],
    lost_after: float | None,
    failed: Mapping[int, Failed],
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """What needs a person; what is in hand. `loading`: how far starts have come, by replica. `failed`: by model.

    `lost_after`: seconds of silence until a node counts as lost; None while none is declared lost.
    """
    needs: list[Item] = []
    hand: list[Item] = []
    for node in snapshot.nodes:
        _node(node, lost_after, needs, hand)
    _replicas(snapshot.replicas, now, loading, needs, hand)
    for model in sorted(snapshot.models, key=lambda each: each.name):
        _rollout(model, snapshot, now, needs, hand)
        if model.rollout is None and model.pk in failed:
            needs.append(_taken_back(model, failed[model.pk]))
    hand += [_drain(node, snapshot.replicas, now) for node in snapshot.nodes if node.draining]
    return tuple(needs), tuple(hand)


def _node(node: NodeView, lost_after: float | None, needs: list[Item], hand: list[Item]) -> None:
    if node.status is not NodeStatus.READY:
        urgent = node.status in (NodeStatus.LOST, NodeStatus.QUARANTINED)
        silent = f"silent for {duration(node.silent_seconds)}" if node.silent_seconds else ""
        title = f"{node.name} is {node.status}"
        following = _NODE_NEXT[node.status]
        if node.status is NodeStatus.UNREACHABLE and node.silent_seconds is not None:
            following += _until_lost(node.silent_seconds, lost_after)
        item = Item(kind="node", pk=node.pk, title=title, text=silent, following=following)
        (needs if urgent else hand).append(item)
        return
    for gpu in node.gpus:
        if not gpu.usable and gpu.problem:  # without one it is split: its slices are placed in its stead
            title = f"{node.name} GPU {gpu.index} can't be used"
            needs.append(Item(kind="node", pk=node.pk, title=title, text=gpu.problem))


def _until_lost(silent_seconds: float, lost_after: float | None) -> str:
    if lost_after is None:
        return "; it is not declared lost while evictions are held"
    return f"; if it stays silent it counts as lost in {duration(lost_after - silent_seconds)}"


def _replicas(
    replicas: Iterable[ReplicaView], now: datetime, loading: Mapping[int, str], needs: list[Item], hand: list[Item]
) -> None:
    """Copies of one model that say the same are one thing to know."""
    wished = [r for r in replicas if r.wish is ReplicaWish.RUN and r.state in _REPLICA_NEEDS | _HAND]
    same = lambda r: (r.label.rpartition("/")[0], r.state, r.reason, loading.get(r.pk, ""), bool(r.explanation_text))  # noqa: E731
    for (_, state, reason, far, explained), group in groupby(sorted(wished, key=same), key=same):
        each = sorted(group, key=lambda r: r.number)
        names = each[0].label + "".join(f", /{r.number}" for r in each[1:])
        unplaced = state is ReplicaState.PENDING and explained
        title = f"{names} " + ("cannot be placed" if unplaced else _is(state, len(each)))
        item = {"kind": "replica", "pk": each[0].pk, "title": title}
        if state not in _REPLICA_NEEDS and not unplaced:
            text = f"{reason}: {far}" if far else reason if reason != state else ""
            hand.append(Item(**item, text=text))  # type: ignore[arg-type]
            continue
        acts = () if unplaced or len(each) > 1 else (("retry", "Try again now"),)
        needs.append(Item(**item, text=reason, following=_following(each, now), acts=acts))  # type: ignore[arg-type]


def _is(state: ReplicaState, count: int) -> str:
    if state is ReplicaState.FAILED:
        return "has failed" if count == 1 else "have failed"
    return f"{'is' if count == 1 else 'are'} {state}"


def _following(replicas: list[ReplicaView], now: datetime) -> str:
    tries = [r.next_try_at for r in replicas if r.next_try_at]
    if tries:
        seconds = (min(tries) - now).total_seconds()
        return f"tried again by itself in {duration(seconds)}" if seconds > 0 else "the next try is due now"
    helps = next((r.helps for r in replicas if r.helps), "")
    return "it starts by itself as soon as it fits" + (f"; would help: {helps}" if helps else "")


def _rollout(model: ModelView, snapshot: FleetSnapshot, now: datetime, needs: list[Item], hand: list[Item]) -> None:
    rollout = model.rollout
    if rollout is None:
        return
    there = [r for r in snapshot.replicas if r.model == model.pk and r.revision == rollout.target]
    ready = sum(r.state is ReplicaState.READY for r in there)
    paused = rollout.state is RolloutState.PAUSED
    waits = rollout_waits(model, snapshot, now)
    title = f"{model.name}: revision {rollout.target} {'is paused' if paused else 'rolls out'}"
    item = Item(
        kind="rollout",
        pk=rollout.pk,
        title=title,
        text=f"{ready} of {counted(model.replicas, 'copy')} run it",
        following="nothing more goes over until it is resumed"
        if paused
        else f"{waits or 'one copy after another goes over'}; all go back by themselves if it fails",
        acts=(("resume", "Resume"), ("roll_back", "Roll back …"))
        if paused
        else (("pause", "Pause"), ("roll_back", "Roll back …")),
    )
    (needs if paused else hand).append(item)


def _taken_back(model: ModelView, failed: Failed) -> Item:
    return Item(
        kind="rollout",
        pk=failed.pk,
        title=f"{model.name}: revision {failed.target} was taken back",
        text=failed.reason,
        following=f"its copies stay at revision {model.stable} until the profile is changed or it is tried again",
        acts=(("resume", "Try it again"),),
    )


def _drain(node: NodeView, replicas: Iterable[ReplicaView], now: datetime) -> Item:
    left: list[str] = []
    deadlines: list[datetime] = []
    for replica in replicas:
        here = [s for s in replica.shards if s.node == node.pk and s.state not in ENDED_SHARD_STATES]
        if here:
            left.append(replica.label)
            deadlines += [shard.evacuate_at for shard in here if shard.evacuate_at is not None]
    why = f": {node.cordon_reason}" if node.cordon_reason else ""
    names = f" ({', '.join(sorted(left)[:4])}{' …' if len(left) > 4 else ''})" if left else ""
    following = ""
    if deadlines:
        seconds = (min(deadlines) - now).total_seconds()
        following = f"what is still there is stopped in {duration(seconds)}"
    return Item(
        kind="node",
        pk=node.pk,
        title=f"{node.name} is being drained{why}",
        text=f"{counted(len(left), 'replica')} still there{names}",
        following=following,
        acts=(("cancel_drain", "Cancel the drain"),),
    )
