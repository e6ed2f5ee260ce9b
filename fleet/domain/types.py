"""The fleet as one frozen value, which placement and reconcile look at; fleet.snapshots builds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from agent_client.profile import Profile
from agent_client.protocol.states import ShardState
from fleet.domain.states import CheckState, NodeStatus, ReplicaState, ReplicaWish, RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    pk: int
    uuid: str
    index: int
    gpu_class: str
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    compute_capability: str = ""  # "9.0"; empty when unknown
    domain: str = ""  # NVLink domain, fleet-wide name for a rack's; empty when unknown or alone
    usable: bool = True  # present and placeable, by the agent's word
    problem: str = ""
    mig: bool = False  # a slice of a card: it joins no group
    schedulable: bool = True
    cordon_reason: str = ""
    holder: str = ""  # label of the replica whose live claim it is
    holder_attempt: int = 0  # whose shard holds it; an older one than the replica's is still ending
    foreign: str = ""  # a process that is not ours, or of an engine that no replica claims
    foreign_mib: int | None = None  # of all such processes together

    @property
    def memory_free_mib(self) -> int | None:
        return None if self.memory_total_mib is None else self.memory_total_mib - (self.memory_used_mib or 0)

    @property
    def free(self) -> bool:
        """Nothing stands against it, whatever the profile."""
        return self.usable and self.schedulable and not self.holder and not self.foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class PortView:
    """One port of an HCA."""

    hca: str
    port: int
    fabric: str = ""  # as people named it; empty for an unlabelled one
    active: bool = False
    problem: str = ""  # why not, in a sentence
    netdev: str = ""
    ethernet: bool = False  # RoCE: the GID index matters
    gid_index: int | None = None
    address: str | None = None  # of its netdev; empty when it has none, None when that is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    pk: int
    name: str
    status: NodeStatus
    schedulable: bool = True
    cordon_reason: str = ""
    draining: bool = False
    unstable: bool = False  # back for so short a time that others are preferred
    damped_seconds: float = 0.0  # it came and went too often: nothing new for so long
    silent_seconds: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    ports: tuple[PortView, ...] = ()
    mgmt_addr: str = ""
    holds_models: frozenset[int] = frozenset()  # models whose files it has, as far as is known
    shards: int = 0  # live ones; spreads CPU replicas

    @property
    def heard(self) -> bool:
        return self.status not in (NodeStatus.UNREACHABLE, NodeStatus.LOST)

    @property
    def standing(self) -> bool:
        """Something new may be placed there."""
        return self.status is NodeStatus.READY and self.schedulable and not (self.draining or self.damped_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    pk: int
    rank: int
    epoch: int
    node: int
    state: ShardState
    wanted: bool
    node_ready: bool = True  # what is known of it is fresh
    draining: bool = False
    drain_deadline_at: datetime | None = None
    evacuate_at: datetime | None = None  # deadline of a drain of its node or of one of its cards
    moved_at: datetime | None = None  # its state, phase or progress last changed
    stalled_at: datetime | None = None  # it owes an answer, and has given no sign of life since
    running: int | None = None  # requests in the engine, by its own word
    rendezvous_port: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """What routers see of a replica: requests in flight, when a token last came, and when they last said so."""

    in_flight: int
    moved_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """A node's answer to «could you run this?»."""

    state: CheckState
    text: str = ""  # why not


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """An open rollout: rolling or paused."""

    pk: int
    target: int
    state: RolloutState
    checks: Mapping[int, CheckView] = field(default_factory=dict)  # by node


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    pk: int
    label: str
    model: int
    number: int
    wish: ReplicaWish
    state: ReplicaState
    attempt: int
    revision: int  # number of the revision it runs
    created_at: datetime
    next_try_at: datetime | None = None
    restart_requested: bool = False
    goal: int | None = None  # revision of its next attempt; None: the one it runs
    drain_deadline_at: datetime | None = None  # of a stop or restart that people asked for
    replaces: int | None = None  # it takes over from that replica once it is ready
    failure: str = ""  # of its newest attempt, in a sentence
    flow: FlowView | None = None  # the router's word of its newest attempt
    explanation_text: str = ""
    helps: str = ""  # the smallest change after which it was found to fit
    reason: str = ""  # of its state, in a sentence
    avoid_node: int | None = None  # where it failed for a reason of that node
    shards: tuple[ShardView, ...] = ()  # every one that has not ended, and those of the newest attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    pk: int
    name: str
    replicas: int
    revision: int
    profile: Profile | None  # None: it could not be read; `profile_error` says why
    profile_error: str = ""
    stable: int = 1  # the revision that replicas run when nothing is under way
    rollout: RolloutView | None = None
    older: Mapping[int, Profile] = field(default_factory=dict)  # profiles of other revisions in use, by number

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Of all its revisions that are in use and can be read."""
        return tuple(each for each in (self.profile, *self.older.values()) if each is not None)

    def profile_of(self, revision: int) -> Profile | None:
        return self.profile if revision == self.revision else self.older.get(revision)

    def why_unusable(self, revision: int) -> str:
        """Why it has no profile of that revision."""
        return f"the profile of {self.name} can't be used: {self.profile_error or f'revision {revision} is gone'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    nodes: tuple[NodeView, ...] = ()
    models: tuple[ModelView, ...] = ()  # managed ones alone
    replicas: tuple[ReplicaView, ...] = ()
    draining: tuple[int, ...] = ()  # nodes that are to be left
    #: Models whose replicas are here, to be decided about; None: all. The others are settled (fleet.domain.settled).
    scope: frozenset[int] | None = None
    meeting_points: frozenset[tuple[int, int]] = frozenset()  # head's node and port of replicas out of scope
