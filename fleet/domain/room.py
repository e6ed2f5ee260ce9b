"""What the machines have room for, as reconcile asks it: behind it stands placement over a snapshot of the nodes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent_client.profile import Profile
from fleet.domain.placement import Placement, place
from fleet.domain.reasons import Refusal
from fleet.domain.types import FleetSnapshot, ReplicaView


class Room(Protocol):
    def place(self, profile: Profile, *, avoid: Collection[int], taken: Collection[int]) -> Placement | Refusal: ...

    def cards_of(self, shard: int) -> tuple[int, ...]:
        """The cards that a shard holds."""
        ...

    def freed_by(self, replica: ReplicaView) -> int:
        """How many cards of one NVLink domain would be free if this replica went."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRoom:
    snapshot: FleetSnapshot
    claims: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # shard → its cards

    def cards_of(self, shard: int) -> tuple[int, ...]:
        return self.claims.get(shard, ())

    def place(self, profile: Profile, *, avoid: Collection[int], taken: Collection[int]) -> Placement | Refusal:
        unstable = {node.pk for node in self.snapshot.nodes if node.unstable}
        return place(self.snapshot, profile, avoid=unstable.union(avoid), taken=taken)

    def freed_by(self, replica: ReplicaView) -> int:
        own = {gpu for shard in replica.shards for gpu in self.cards_of(shard.pk)}
        nodes = {shard.node for shard in replica.shards}
        counts: dict[str, int] = {}
        for node in self.snapshot.nodes:
            if node.pk not in nodes:
                continue
            for gpu in node.gpus:
                free = gpu.usable and gpu.schedulable and not gpu.holder and not gpu.foreign
                if free or gpu.pk in own:
                    domain = gpu.domain or f"alone-{gpu.pk}"
                    counts[domain] = counts.get(domain, 0) + 1
        held = {gpu.domain or f"alone-{gpu.pk}" for node in self.snapshot.nodes for gpu in node.gpus if gpu.pk in own}
        return max((counts[domain] for domain in held if domain in counts), default=0)
