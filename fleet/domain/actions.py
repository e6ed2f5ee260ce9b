"""What a tick may do, as values; services/reconciler carries each out by compare-and-set."""

from dataclasses import dataclass
from datetime import datetime

from fleet.domain.placement import Placement, ShardPlacement
from fleet.domain.reasons import Refusal
from fleet.domain.states import RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateReplica:
    model: int
    number: int
    revision: int
    replaces: int | None = None  # it takes over from that one


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReplica:
    """Let it end, and delete it when its shards have ended."""

    replica: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReplica:
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGoal:
    """The replica's next attempt is to run this revision; a running one ends gently first."""

    replica: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainShard:
    """Nothing new for it; it ends with its last request, or at the deadline."""

    shard: int
    deadline_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShard:
    shard: int
    reason: str
    drained: bool = False  # for a drain of its node or card alone: not if that was cancelled meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpShard:
    """Stop it and count it as a failure, for a reason that its agent does not see."""

    shard: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplica:
    replica: int
    attempt: int  # the one that it replaces; another value in the row means a lost race
    revision: int
    placement: Placement
    rendezvous_port: int | None = None  # where the ranks meet, on the head's node


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    replica: int
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AskNode:
    """Could this node run that part of the revision? Nothing is started for the answer."""

    rollout: int
    model: int
    revision: int
    part: ShardPlacement
    replaces: int | None = None  # the replica whose cards it would take over


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRollout:
    rollout: int
    state: RolloutState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    node: int


Action = (
    CreateReplica
    | RemoveReplica
    | DeleteReplica
    | SetGoal
    | DrainShard
    | StopShard
    | GiveUpShard
    | StartReplica
    | Explain
    | AskNode
    | EndRollout
    | NodeDrained
)
