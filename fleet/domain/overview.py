"""The fleet at a glance: what needs a person, what is in hand, wish against truth, and every card."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from fleet.domain.states import NodeStatus, ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, ReplicaView
from fleet.domain.words import duration


class CardUse(StrEnum):
    """What a card does now."""

    SERVING = "serving"
    STARTING = "starting"
    DRAINING = "draining"
    FREE = "free"
    FOREIGN = "someone else's"
    SICK = "sick"
    CORDONED = "cordoned"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to know: what, why, and what happens next by itself."""

    kind: str  # "node" or "replica": whose page tells more
    pk: int
    title: str
    text: str = ""
    following: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    pk: int
    name: str
    wanted: int
    states: tuple[ReplicaState, ...]
    reason: str = ""  # where wish and truth differ

    @property
    def ready(self) -> int:
        return sum(state is ReplicaState.READY for state in self.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    use: CardUse
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTile:
    pk: int
    name: str
    note: str  # "cordoned", "unreachable"; empty when there is nothing to say
    domains: tuple[tuple[Card, ...], ...]  # cards by NVLink domain

    @property
    def free(self) -> int:
        return sum(card.use is CardUse.FREE for domain in self.domains for card in domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    sentence: str
    needs_you: tuple[Item, ...]
    in_hand: tuple[Item, ...]
    models: tuple[ModelLine, ...]
    nodes: tuple[NodeTile, ...]


_REPLICA_NEEDS = frozenset({ReplicaState.FAILED})
_HAND = frozenset(ReplicaState) - {ReplicaState.READY, ReplicaState.STOPPED, ReplicaState.FAILED}
_NODE_NEXT = {
    NodeStatus.LOST: "nothing happens by itself: start its agent again, or delete the node",
    NodeStatus.QUARANTINED: "nothing happens by itself: see the node's page, then release it",
    NodeStatus.UNREACHABLE: "its engines stay routable; if it stays silent it counts as lost",
    NodeStatus.JOINING: "it is ready once it answers on its stream",
}


def overview(snapshot: FleetSnapshot) -> Overview:
    needs: list[Item] = []
    hand: list[Item] = []
    for node in snapshot.nodes:
        _node(node, needs, hand)
    _replicas(snapshot.replicas, needs, hand)
    states = {replica.label: replica.state for replica in snapshot.replicas}
    models = tuple(_models(snapshot))
    return Overview(
        sentence=_sentence(snapshot, models, needs, hand),
        needs_you=tuple(needs),
        in_hand=tuple(hand),
        models=models,
        nodes=tuple(_tile(node, states) for node in snapshot.nodes),
    )


def _node(node: NodeView, needs: list[Item], hand: list[Item]) -> None:
    if node.status is not NodeStatus.READY:
        urgent = node.status in (NodeStatus.LOST, NodeStatus.QUARANTINED)
        silent = f"silent for {duration(node.silent_seconds)}" if node.silent_seconds else ""
        title = f"{node.name} is {node.status}"
        item = Item(kind="node", pk=node.pk, title=title, text=silent, following=_NODE_NEXT[node.status])
        (needs if urgent else hand).append(item)
        return
    for gpu in node.gpus:
        if not gpu.usable and gpu.problem:  # without one it is split: its slices are placed in its stead
            title = f"{node.name} GPU {gpu.index} can't be used"
            needs.append(Item(kind="node", pk=node.pk, title=title, text=gpu.problem))


def _replicas(replicas: Iterable[ReplicaView], needs: list[Item], hand: list[Item]) -> None:
    """Copies of one model that say the same are one thing to know."""
    wished = [r for r in replicas if r.wish is ReplicaWish.RUN and r.state in _REPLICA_NEEDS | _HAND]
    same = lambda r: (r.label.rpartition("/")[0], r.state, r.reason, bool(r.explanation_text))  # noqa: E731
    for (_, state, reason, explained), group in groupby(sorted(wished, key=same), key=same):
        each = sorted(group, key=lambda r: r.number)
        names = each[0].label + "".join(f", /{r.number}" for r in each[1:])
        unplaced = state is ReplicaState.PENDING and explained
        title = f"{names} " + ("cannot be placed" if unplaced else f"{'are' if len(each) > 1 else 'is'} {state}")
        if state not in _REPLICA_NEEDS and not unplaced:
            hand.append(Item(kind="replica", pk=each[0].pk, title=title, text=reason))
            continue
        tries = [r.next_try_at for r in each if r.next_try_at]
        following = f"tried again at {min(tries):%H:%M:%S} UTC" if tries else "it starts by itself as soon as it fits"
        needs.append(Item(kind="replica", pk=each[0].pk, title=title, text=reason, following=following))


def _models(snapshot: FleetSnapshot) -> Iterable[ModelLine]:
    for model in sorted(snapshot.models, key=lambda each: each.name):
        rows = [each for each in snapshot.replicas if each.model == model.pk]
        rows.sort(key=lambda each: each.number)
        reason = next((each.reason for each in rows if each.state is not ReplicaState.READY and each.reason), "")
        states = tuple(each.state for each in rows)
        yield ModelLine(pk=model.pk, name=model.name, wanted=model.replicas, states=states, reason=reason)


def _tile(node: NodeView, states: Mapping[str, ReplicaState]) -> NodeTile:
    cards = sorted(node.gpus, key=lambda gpu: (gpu.domain, gpu.index))
    note = "" if node.status is NodeStatus.READY else node.status.value
    return NodeTile(
        pk=node.pk,
        name=node.name,
        note=note or ("" if node.schedulable else "cordoned"),
        domains=tuple(
            tuple(_card(node, gpu, states) for gpu in group) for _, group in groupby(cards, key=lambda gpu: gpu.domain)
        ),
    )


def _card(node: NodeView, gpu: GpuView, states: Mapping[str, ReplicaState]) -> Card:
    use, why = CardUse.FREE, ""
    if node.status in (NodeStatus.UNREACHABLE, NodeStatus.LOST):
        use, why = CardUse.SILENT, gpu.holder
    elif not gpu.usable:
        use, why = CardUse.SICK, gpu.problem
    elif gpu.holder:
        state = states.get(gpu.holder)
        use = CardUse.SERVING if state is ReplicaState.READY else CardUse.STARTING
        use, why = (CardUse.DRAINING if state is ReplicaState.DRAINING else use), gpu.holder
    elif gpu.foreign:
        use, why = CardUse.FOREIGN, gpu.foreign
    elif not gpu.schedulable or not node.schedulable:
        use, why = CardUse.CORDONED, node.cordon_reason
    title = f"{node.name} GPU {gpu.index}, {gpu.gpu_class}: {use}"
    return Card(use=use, title=title + (f", {why}" if why else ""))


def _sentence(snapshot: FleetSnapshot, models: tuple[ModelLine, ...], needs: list[Item], hand: list[Item]) -> str:
    if not snapshot.nodes:
        return "No machine has joined yet."
    if needs or hand:
        first = f"{_count(len(needs))} need{'s' * (len(needs) == 1)} you." if needs else "Nothing needs you."
        more = f" {_count(len(hand))} {'is' if len(hand) == 1 else 'are'} being taken care of." if hand else ""
        return first + more
    if not models:
        return "All is well; no model is in the catalog yet."
    return (
        f"All is well: every model has what it wants on {len(snapshot.nodes)} node{'s' * (len(snapshot.nodes) != 1)}."
    )


_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def _count(number: int) -> str:
    word = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{word} thing{'s' * (number != 1)}"
