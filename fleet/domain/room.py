"""What the machines have room for, as a tick asks it: behind it stands placement over an index of the nodes.

What was promised in the tick stays promised for the rest of it.
"""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Protocol

from agent_client.profile import Profile
from fleet.domain.placement import FleetIndex, Placement, place
from fleet.domain.reasons import Refusal
from fleet.domain.types import FleetSnapshot, GpuView, ReplicaView

#: It does not fit into what was looked at, and why was not asked.
UNTOLD = Refusal(code="untold", text="")


class TooNarrow(Exception):
    """This can't be decided without the whole fleet."""


class Room(Protocol):
    def place(
        self, profile: Profile, *, model: int, avoid: Collection[int] = (), instead_of: ReplicaView | None = None
    ) -> Placement | Refusal: ...

    def promise(self, placement: Placement, *, model: int) -> None:
        """These cards are no longer to be had."""
        ...

    def cards_of(self, shard: int) -> tuple[int, ...]:
        """The cards that a shard holds."""
        ...

    def freed_by(self, replica: ReplicaView) -> int:
        """How many cards of one NVLink domain would be free if this replica went."""
        ...

    def room_of(self, replicas: Collection[ReplicaView]) -> Mapping[int, int]:
        """By node on which one of them runs: cards that are free there or that they hold."""
        ...


class SnapshotRoom:
    def __init__(self, snapshot: FleetSnapshot, claims: Mapping[int, tuple[int, ...]] | None = None) -> None:
        """`claims`: shard → its cards."""
        self.snapshot = snapshot
        self._claims = claims or {}
        self._index: FleetIndex | None = None

    def place(
        self, profile: Profile, *, model: int, avoid: Collection[int] = (), instead_of: ReplicaView | None = None
    ) -> Placement | Refusal:
        return place(self._indexed(), profile, model=model, avoid=avoid, instead_of=instead_of)

    def promise(self, placement: Placement, *, model: int) -> None:
        self._index = self._indexed().taking(placement, model=model)

    def cards_of(self, shard: int) -> tuple[int, ...]:
        return self._claims.get(shard, ())

    def freed_by(self, replica: ReplicaView) -> int:
        own = {gpu for shard in replica.shards for gpu in self.cards_of(shard.pk)}
        domains = {_domain(self._cards[gpu]) for gpu in own if gpu in self._cards}
        there = (gpu for shard in replica.shards for gpu in self._by_node.get(shard.node, ()))
        counts = dict.fromkeys(domains, 0)
        for gpu in there:
            if _domain(gpu) in domains and (gpu.free or gpu.pk in own):
                counts[_domain(gpu)] += 1
        return max(counts.values(), default=0)

    def room_of(self, replicas: Collection[ReplicaView]) -> Mapping[int, int]:
        shards = [shard for replica in replicas for shard in replica.shards]
        own = {gpu for shard in shards for gpu in self.cards_of(shard.pk)}
        nodes = {shard.node for shard in shards}
        return {node: sum(gpu.free or gpu.pk in own for gpu in self._by_node.get(node, ())) for node in nodes}

    def _indexed(self) -> FleetIndex:
        if self._index is None:
            self._index = FleetIndex.build(self.snapshot)
        return self._index

    @cached_property
    def _by_node(self) -> Mapping[int, tuple[GpuView, ...]]:
        return {node.pk: node.gpus for node in self.snapshot.nodes}

    @cached_property
    def _cards(self) -> Mapping[int, GpuView]:
        return {gpu.pk: gpu for node in self.snapshot.nodes for gpu in node.gpus}


def _domain(gpu: GpuView) -> str:
    return gpu.domain or f"alone-{gpu.pk}"
