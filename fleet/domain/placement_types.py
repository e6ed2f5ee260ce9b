"""What placement answers with: a part for each rank, and where each variable of its environment came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlacement:
    """The part of a replica on one node."""

    rank: int
    node: int
    node_name: str
    gpus: tuple[int, ...] = ()  # primary keys; cards of one tensor-parallel group stand together
    fabric_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    shards: tuple[ShardPlacement, ...]  # by rank; the first is the head
    gpu_class: str = ""
    fabric: str = ""  # on which the ranks meet; empty on one node and inside one NVLink rack
    head_address: str = ""  # where the ranks meet; empty on one node
    head_address_origin: str = ""  # fabric NAME, or automatic: where the control plane reaches the node
    preempts: tuple[int, ...] = ()  # replicas of lower priority that must end first

    @property
    def head(self) -> ShardPlacement:
        return self.shards[0]

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(gpu for shard in self.shards for gpu in shard.gpus)

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(shard.node_name for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One variable of a rank's environment."""

    name: str
    value: str
    origin: str  # profile, secret NAME, fabric NAME, automatic
