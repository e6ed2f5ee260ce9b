"""The fleet at a glance: what needs a person, what is in hand, wish against truth, and every card."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.attention import Failed, Item, attention
from fleet.domain.states import NodeStatus, ReplicaState
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, ReplicaView
from fleet.domain.words import counted


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
    SPLIT = "split"  # into MIG slices


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
    replica: int | None = None  # that holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTile:
    pk: int
    name: str
    note: str  # "cordoned", "unreachable"; empty when there is nothing to say
    domains: tuple[tuple[Card, ...], ...]  # cards by NVLink domain
    hosts: str = ""  # "CPU, 2 copies": of a node without cards

    @property
    def free(self) -> int:
        return sum(card.use is CardUse.FREE for domain in self.domains for card in domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that reach each other over one fabric; an empty name for those on none."""

    fabric: str
    classes: tuple[str, ...]
    nodes: tuple[NodeTile, ...]

    @property
    def free(self) -> int:
        return sum(node.free for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    value: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    sentence: str
    figures: tuple[Figure, ...]
    needs_you: tuple[Item, ...]
    in_hand: tuple[Item, ...]
    models: tuple[ModelLine, ...]
    groups: tuple[Group, ...]


def overview(
    snapshot: FleetSnapshot,
    *,
    now: datetime,
    loading: Mapping[int, str] | None = None,
    lost_after: float | None = None,
    failed: Mapping[int, Failed] | None = None,
) -> Overview:
    """`loading`, `lost_after` and `failed`: as `attention` takes them."""
    needs, hand = attention(snapshot, now, loading or {}, lost_after, failed or {})
    holders = {replica.label: replica for replica in snapshot.replicas}
    models = tuple(_models(snapshot))
    return Overview(
        sentence=_sentence(snapshot, models, needs, hand),
        figures=_figures(snapshot),
        needs_you=needs,
        in_hand=hand,
        models=models,
        groups=_groups(snapshot, holders),
    )


def _figures(snapshot: FleetSnapshot) -> tuple[Figure, ...]:
    cards = [gpu for node in snapshot.nodes for gpu in node.gpus if gpu.usable or gpu.problem]
    free = sum(gpu.free for node in snapshot.nodes if node.standing for gpu in node.gpus)
    ready = sum(replica.state is ReplicaState.READY for replica in snapshot.replicas)
    nodes = sum(node.status is NodeStatus.READY for node in snapshot.nodes)
    return (
        Figure(value=f"{nodes} of {len(snapshot.nodes)}", of="nodes ready"),
        Figure(value=f"{free} of {len(cards)}", of="GPUs free"),
        Figure(value=str(sum(not gpu.usable for gpu in cards)), of="GPUs sick"),
        Figure(value=f"{ready} of {sum(model.replicas for model in snapshot.models)}", of="copies ready"),
    )


def _groups(snapshot: FleetSnapshot, holders: Mapping[str, ReplicaView]) -> tuple[Group, ...]:
    """The nodes by the first fabric that they are on; those on none come last."""
    living = (s for r in snapshot.replicas for s in r.shards if s.state not in ENDED_SHARD_STATES)
    there = Counter(shard.node for shard in living)
    found: dict[str, list[NodeView]] = defaultdict(list)
    for node in snapshot.nodes:
        found[next((port.fabric for port in node.ports if port.fabric), "")].append(node)
    return tuple(
        Group(
            fabric=fabric,
            classes=tuple(sorted({gpu.gpu_class for node in nodes for gpu in node.gpus if gpu.gpu_class})),
            nodes=tuple(_tile(node, holders, there[node.pk]) for node in nodes),
        )
        for fabric, nodes in sorted(found.items(), key=lambda item: (not item[0], item[0]))
    )


def _models(snapshot: FleetSnapshot) -> Iterable[ModelLine]:
    for model in sorted(snapshot.models, key=lambda each: each.name):
        rows = [each for each in snapshot.replicas if each.model == model.pk]
        rows.sort(key=lambda each: each.number)
        reason = next((each.reason for each in rows if each.state is not ReplicaState.READY and each.reason), "")
        states = tuple(each.state for each in rows)
        yield ModelLine(pk=model.pk, name=model.name, wanted=model.replicas, states=states, reason=reason)


def _tile(node: NodeView, holders: Mapping[str, ReplicaView], there: int) -> NodeTile:
    cards = sorted(node.gpus, key=lambda gpu: (gpu.domain, gpu.index))
    note = "" if node.status is NodeStatus.READY else node.status.value
    return NodeTile(
        pk=node.pk,
        name=node.name,
        note=note or ("draining" if node.draining else "" if node.schedulable else "cordoned"),
        domains=tuple(
            tuple(_card(node, gpu, holders) for gpu in group) for _, group in groupby(cards, key=lambda gpu: gpu.domain)
        ),
        hosts="CPU" + (f", {counted(there, 'copy')}" if there else ""),
    )


def _card(node: NodeView, gpu: GpuView, holders: Mapping[str, ReplicaView]) -> Card:
    use, why = CardUse.FREE, ""
    if node.status in (NodeStatus.UNREACHABLE, NodeStatus.LOST):
        use, why = CardUse.SILENT, gpu.holder
    elif not gpu.usable:
        use, why = (CardUse.SICK, gpu.problem) if gpu.problem else (CardUse.SPLIT, "its slices are placed in its stead")
    elif gpu.holder:
        state = holders[gpu.holder].state if gpu.holder in holders else None
        use = CardUse.SERVING if state is ReplicaState.READY else CardUse.STARTING
        use, why = (CardUse.DRAINING if state is ReplicaState.DRAINING else use), gpu.holder
    elif gpu.foreign:
        use, why = CardUse.FOREIGN, gpu.foreign
    elif not gpu.schedulable or not node.schedulable:
        use, why = CardUse.CORDONED, node.cordon_reason
    title = f"{node.name} GPU {gpu.index}, {gpu.gpu_class}: {use}"
    holder = holders[gpu.holder].pk if gpu.holder in holders else None
    return Card(use=use, title=title + (f", {why}" if why else ""), replica=holder)


def _sentence(snapshot: FleetSnapshot, models: tuple[ModelLine, ...], needs: Sized, hand: Sized) -> str:
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
