"""The fleet as placement searches it: nodes that look alike lie together, so that a decision looks at kinds of nodes.

Built once for a snapshot. `taking` and `changing` give a new index that shares all but what changed.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agent_client.profile import Profile
from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.fit import Room, Shape, Take
from fleet.domain.placement_types import Placement
from fleet.domain.reasons import Refusal
from fleet.domain.score import Holes, holes_by_class
from fleet.domain.states import ReplicaWish
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, ReplicaView


class Kind(NamedTuple):
    """All that tells one node from another for the score: rooms of one class, and the networks that reach it."""

    room: Room
    networks: tuple[str, ...]  # fabrics with an active port, by name
    rack: str  # NVLink domain over several nodes; empty for none

    @property
    def reached(self) -> tuple[str, ...]:
        return (*self.networks, self.rack) if self.rack else self.networks


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The free cards of one class on one node."""

    node: NodeView
    gpu_class: str
    kind: Kind
    domains: tuple[tuple[GpuView, ...], ...]  # as kind.room.domains
    unknown: tuple[GpuView, ...]
    order: tuple[bool, str]  # among equals: settled nodes first, then by name

    @property
    def cards(self) -> tuple[GpuView, ...]:
        return tuple(gpu for domain in self.domains for gpu in domain) + self.unknown


Cells = dict[Kind, list[Slot]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetIndex:
    nodes: Mapping[int, NodeView]
    slots: Mapping[int, Mapping[str, Slot]]  # by node and class; standing nodes alone
    cells: Mapping[str, Cells]  # by class
    racks: frozenset[str]
    holes: Mapping[str, Holes]
    rivals: Mapping[str, tuple[int, int]]  # class → models of the catalog that may use no other, and all that name it
    labels: Mapping[tuple[str, str], frozenset[int]]  # nodes that have it
    runs: Mapping[str, Mapping[int, int]]  # model name → node → live shards of it
    leave: Mapping[str, Mapping[int, int]]  # of those, the ones that end, or whose substitute is there
    names: Mapping[int, str]  # of models
    holds: Mapping[int, frozenset[int]]  # model → nodes that hold its files
    snapshot: FleetSnapshot
    taken: frozenset[int] = frozenset()
    busy: Mapping[int, int] = field(default_factory=dict)  # node → shards placed since the snapshot
    #: By class and shape what each room gives: a cache that an index and all that came of it share.
    takes: dict[tuple[str, Shape], dict[Room, Take | None]] = field(default_factory=dict, repr=False)
    #: What found no place since the index was built, by question: the same cache.
    refusals: dict[Any, tuple[Any, Refusal]] = field(default_factory=dict, repr=False)

    @classmethod
    def build(cls, snapshot: FleetSnapshot) -> "FleetIndex":
        nodes = {node.pk: node for node in sorted(snapshot.nodes, key=lambda each: each.name)}
        racks = _racks(nodes.values())
        slots = {pk: _slots(node, racks, frozenset()) for pk, node in nodes.items() if node.standing}
        classes = {gpu.gpu_class for node in nodes.values() for gpu in node.gpus}
        names = {model.pk: model.name for model in snapshot.models}
        profiles = [model.profile for model in snapshot.models if model.profile is not None]
        labels: dict[tuple[str, str], set[int]] = defaultdict(set)
        holds: dict[int, set[int]] = defaultdict(set)
        for node in nodes.values():
            for label in node.labels.items():
                labels[label].add(node.pk)
            for model in node.holds_models:
                holds[model].add(node.pk)
        return cls(
            nodes=nodes,
            slots=slots,
            cells=_cells(slots.values()),
            racks=racks,
            holes=holes_by_class(profiles, classes),
            rivals=_rivals(profiles),
            labels={label: frozenset(pks) for label, pks in labels.items()},
            runs=_runs(snapshot.replicas, names),
            leave=_runs(_leaving(snapshot.replicas), names),
            names=names,
            holds={model: frozenset(pks) for model, pks in holds.items()},
            snapshot=snapshot,
        )

    def taking(self, placement: Placement, *, model: int | None = None) -> "FleetIndex":
        """The fleet after a placement: its cards are gone, and its model counts as running there."""
        runs, name = self.runs, self.names.get(model) if model is not None else None
        busy = dict(self.busy)
        for shard in placement.shards:
            busy[shard.node] = busy.get(shard.node, 0) + 1
        if name is not None:
            here = dict(runs.get(name, {}))
            for shard in placement.shards:
                here[shard.node] = here.get(shard.node, 0) + 1
            runs = {**runs, name: here}
        found = self.without(placement.gpus, nodes={shard.node for shard in placement.shards})
        return replace(found, runs=runs, busy=busy)

    def without(self, gpus: Collection[int], *, nodes: Collection[int] | None = None) -> "FleetIndex":
        """With these cards taken; `nodes`: where they are, if that is known."""
        fresh = frozenset(gpus) - self.taken
        if not fresh:
            return self
        where = (
            nodes if nodes is not None else [n.pk for n in self.nodes.values() if any(g.pk in fresh for g in n.gpus)]
        )
        return replace(self, taken=self.taken | fresh)._again(where)

    def changing(self, nodes: Iterable[NodeView]) -> "FleetIndex":
        """With other facts about some nodes, as a what-if asks; who runs where stays."""
        changed = {node.pk: node for node in nodes}
        return replace(self, nodes={**self.nodes, **changed}, refusals={})._again(changed)

    def _again(self, pks: Iterable[int]) -> "FleetIndex":
        slots = dict(self.slots)
        cells = dict(self.cells)
        copied: set[str] = set()
        for pk in sorted(set(pks)):
            node = self.nodes[pk]
            before = slots.pop(pk, {})
            after = _slots(node, self.racks, self.taken) if node.standing else {}
            if after:
                slots[pk] = after
            for name in sorted(before.keys() | after.keys()):
                if name not in copied:
                    cells[name] = dict(cells.get(name, {}))
                    copied.add(name)
                _move(cells[name], before.get(name), after.get(name))
        return replace(self, slots=slots, cells=cells)

    def holes_of(self, gpu_class: str) -> Holes:
        return self.holes.get(gpu_class) or _USUAL


_USUAL = Holes()


def _move(cells: Cells, before: Slot | None, after: Slot | None) -> None:
    if before is not None:
        members = [slot for slot in cells[before.kind] if slot.node.pk != before.node.pk]
        if members:
            cells[before.kind] = members
        else:
            del cells[before.kind]
    if after is not None:
        members = list(cells.get(after.kind, ()))
        insort(members, after, key=_order)
        cells[after.kind] = members


def _order(slot: Slot) -> tuple[bool, str]:
    return slot.order


def _cells(slots: Iterable[Mapping[str, Slot]]) -> dict[str, Cells]:
    cells: dict[str, Cells] = {}
    for of_node in slots:
        for slot in of_node.values():
            cells.setdefault(slot.gpu_class, {}).setdefault(slot.kind, []).append(slot)
    for kinds in cells.values():
        for members in kinds.values():
            members.sort(key=_order)
    return cells


def _racks(nodes: Iterable[NodeView]) -> frozenset[str]:
    """NVLink domains over more than one node."""
    first: dict[str, int] = {}
    racks: set[str] = set()
    for node in nodes:
        for gpu in node.gpus:
            if gpu.domain and first.setdefault(gpu.domain, node.pk) != node.pk:
                racks.add(gpu.domain)
    return frozenset(racks)


def _slots(node: NodeView, racks: frozenset[str], taken: frozenset[int]) -> dict[str, Slot]:
    by_class: dict[str, list[GpuView]] = {}
    for gpu in node.gpus:
        if gpu.free and gpu.pk not in taken:
            by_class.setdefault(gpu.gpu_class, []).append(gpu)
    return {name: slot_of(node, name, cards, racks) for name, cards in by_class.items()} if by_class else {}


def slot_of(node: NodeView, gpu_class: str, cards: Iterable[GpuView], racks: frozenset[str]) -> Slot:
    """Cards that are free for someone, arranged by domain: the largest first, then by index."""
    groups: dict[str, list[GpuView]] = {}
    unknown = []
    for gpu in sorted(cards, key=lambda each: (each.index, each.pk)):
        if gpu.domain:
            groups.setdefault(gpu.domain, []).append(gpu)
        else:
            unknown.append(gpu)
    domains = sorted(groups.values(), key=lambda each: (-len(each), each[0].index, each[0].pk))
    rack = min((name for name in groups if name in racks), default="")
    networks = tuple(sorted({port.fabric for port in node.ports if port.fabric and port.active}))
    room = Room(tuple(len(each) for each in domains), len(unknown))
    return Slot(
        node=node,
        gpu_class=gpu_class,
        kind=Kind(room, networks, rack),
        domains=tuple(tuple(each) for each in domains),
        unknown=tuple(unknown),
        order=(node.unstable, node.name),
    )


def _rivals(profiles: Iterable[Profile]) -> dict[str, tuple[int, int]]:
    named = [profile.gpu_class for profile in profiles if profile.gpu_class and profile.gpus_total]
    return {
        each: (sum(names == (each,) for names in named), sum(each in names for names in named))
        for each in {name for names in named for name in names}
    }


def _leaving(replicas: Collection[ReplicaView]) -> list[ReplicaView]:
    """Copies that will not be there when those that are placed now serve: nobody is to keep away from them."""
    removed = ReplicaWish.REMOVE
    replaced = {each.replaces for each in replicas if each.replaces is not None and each.wish is not removed}
    return [each for each in replicas if each.wish is removed or each.pk in replaced]


def _runs(replicas: Collection[ReplicaView], names: Mapping[int, str]) -> dict[str, dict[int, int]]:
    out: dict[str, dict[int, int]] = {}
    for replica in replicas:
        name = names.get(replica.model) or replica.label.rpartition("/")[0]
        for shard in replica.shards:
            if shard.state not in ENDED_SHARD_STATES and shard.state is not ShardState.LOST:
                here = out.setdefault(name, {})
                here[shard.node] = here.get(shard.node, 0) + 1
    return out
