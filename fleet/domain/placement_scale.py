"""The scores of all kinds of nodes of one class for one shape, each worked out once and only when it is asked for."""

from collections.abc import Mapping
from functools import cached_property

from fleet.domain.fit import Shape, Take, take
from fleet.domain.placement_index import FleetIndex, Kind
from fleet.domain.score import Holes

Score = tuple[float, ...]  # lower is better


class Scale:
    """Scores of the kinds of one class for one shape."""

    def __init__(self, index: FleetIndex, gpu_class: str, shape: Shape) -> None:
        self.index, self.gpu_class, self.shape = index, gpu_class, shape
        self.holes: Holes = index.holes_of(gpu_class)
        self._takes = index.takes.setdefault((gpu_class, shape), {})

    def take(self, kind: Kind) -> Take | None:
        room = kind.room
        if room not in self._takes:
            self._takes[room] = take(room, self.shape, self.holes)
        return self._takes[room]

    def score(self, kind: Kind, found: Take) -> Score:
        return (found.loss + self._wide(kind), float(bool(kind.networks)), found.left)

    def _wide(self, kind: Kind) -> float:
        """What wishes over several nodes lose when this node can't serve them any more."""
        total, loss = kind.room.total, 0.0
        for number, wide in enumerate(self.holes.wide):
            if total < wide.cards or total - self.shape.cards >= wide.cards:
                continue
            for network in kind.reached:
                have = self.reach[number, network]
                if have >= wide.nodes:
                    loss += wide.cards + (wide.nodes * wide.cards if have % wide.nodes == 0 else 0)
        return loss

    def wide_loss(self, network: str, nodes: int) -> float:
        """What wishes over several nodes lose when so many nodes of a network can't serve them any more."""
        loss = 0
        for number, wide in enumerate(self.holes.wide):
            have = self.reach.get((number, network), 0)
            loss += (have // wide.nodes - max(have - nodes, 0) // wide.nodes) * wide.nodes * wide.cards
        return float(loss)

    @cached_property
    def reach(self) -> Mapping[tuple[int, str], int]:
        """How many nodes of each network could serve each wish over several nodes."""
        out: dict[tuple[int, str], int] = {}
        for kind, members in self.index.cells.get(self.gpu_class, {}).items():
            for number, wide in enumerate(self.holes.wide):
                if kind.room.total >= wide.cards:
                    for network in kind.reached:
                        out[number, network] = out.get((number, network), 0) + len(members)
        return out

    @cached_property
    def ranked(self) -> list[tuple[Score, Kind]]:
        """Kinds with room for a rank, the cheapest first."""
        out = []
        for kind in self.index.cells.get(self.gpu_class, {}):
            found = self.take(kind)
            if found is not None:
                out.append((self.score(kind, found), kind))
        out.sort()
        return out

    @cached_property
    def on_network(self) -> Mapping[tuple[bool, str], list[tuple[Score, Kind]]]:
        """The ranked kinds of each network; a name alone could be a fabric's and a rack's."""
        out: dict[tuple[bool, str], list[tuple[Score, Kind]]] = {}
        for each in self.ranked:
            for name in each[1].networks:
                out.setdefault((True, name), []).append(each)
            if each[1].rack:
                out.setdefault((False, each[1].rack), []).append(each)
        return out
