"""The messages of the agent stream as frozen values, with what each means; docs/protocol.md shows one of each.

Compatibility: fields are only added, always with a default; a field is never given another meaning.
Figures that are not known are None, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agent_client.protocol.states import ShardState

PROTOCOL_VERSION = 1
#: The versions that this side can speak, newest first: the current and the one before.
SUPPORTED_VERSIONS = (1,)
SUBPROTOCOL = "llmgw.agent.v1"
MAX_FRAME_BYTES = 1024 * 1024

# --- parts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """One shard as its agent sees it. Whole: it replaces what was known before."""

    shard: str  # "<replica uid>/<rank>"
    epoch: int
    state: ShardState
    code: str = ""  # FailureCode, or a diagnosis code of the engine adapter
    detail: str = ""  # a sentence for people
    hint: str = ""
    endpoint: str | None = None  # URL at which the router reaches the engine; rank 0 only
    pids: tuple[int, ...] = ()
    phase: str = ""  # "weights", "compiling", … while loading
    progress: float | None = None  # 0 to 1
    exit_code: int | None = None
    exit_signal: int | None = None
    tail: tuple[str, ...] = ()  # last lines of the engine's output, on failure
    running: int | None = None  # requests in the engine
    waiting: int | None = None
    stalled_seconds: float | None = None  # for so long a ready engine that owes an answer gave no sign of life
    record: Mapping[str, Any] | None = None  # of a failed attempt: command, cards, …; of a refused one: problems


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldProblem:
    """One thing that stands against a start."""

    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """All that an agent needs to run one shard."""

    replica: str  # label for people: "qwen/1"
    served_names: tuple[str, ...]  # the catalog name, then its aliases
    profile: Mapping[str, Any]  # agent_client.profile reads and checks it
    revision: int = 1
    rank: int = 0
    nodes: int = 1
    gpus: tuple[str, ...] = ()  # GPU UUIDs
    engine_key: str | None = field(default=None, repr=False)  # the key that the router shows to this engine
    fabric_env: Mapping[str, str] = field(default_factory=dict)
    rendezvous_address: str | None = None
    rendezvous_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredShard:
    shard: str
    epoch: int
    spec: ShardSpec
    draining: bool = False
    drain_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Everything that the node should run. What an agent supervises and does not find here is stopped."""

    revision: int
    shards: tuple[DesiredShard, ...] = ()


# --- agent to server -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """First message of a stream: who, and all that is there. There is no discovery call: the inventory comes here."""

    TYPE: ClassVar[str] = "register"
    protocol: int
    agent_version: str
    node_id: str  # the label that the node's owner chose
    machine_id: str
    boot_id: str
    instance_id: str  # of this agent process
    hostname: str
    mgmt_addr: str
    node_uid: str | None = None  # identity that the server issued before
    credential: str | None = field(default=None, repr=False)  # proves that identity
    inventory: Mapping[str, Any] = field(default_factory=dict)  # DESIGN.md section 5
    inventory_fingerprint: str = ""
    fabrics: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)  # engine kind -> version, "" when unknown
    shards: tuple[ShardReport, ...] = ()
    state_lost: bool = False  # the ledger could not be read
    platform: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    TYPE: ClassVar[str] = "heartbeat"
    desired_revision: int = 0  # newest desired state that this agent has applied
    inventory_stale_seconds: float | None = None  # age of the last good inventory when discovery hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Whole state of the node: on change of hardware and every few minutes. Replaces what was known."""

    TYPE: ClassVar[str] = "report"
    shards: tuple[ShardReport, ...] = ()
    inventory: Mapping[str, Any] | None = None  # None: unchanged since the last one sent on this stream
    inventory_fingerprint: str = ""
    engines: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    TYPE: ClassVar[str] = "shard_status"
    report: ShardReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Answer to a command: taken, or refused with the reason."""

    TYPE: ClassVar[str] = "ack"
    command: int
    accepted: bool = True
    code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Answer to a check: nothing stands against it, or what does: the first thing, and all of them one by one."""

    TYPE: ClassVar[str] = "checked"
    check: int
    code: str = ""  # FailureCode, or the code of a profile's problem; empty when it could run
    detail: str = ""
    hint: str = ""
    problems: tuple[ToldProblem, ...] = ()  # the most decisive first; as many as fit, the last one counts the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    TYPE: ClassVar[str] = "log_chunk"
    shard: str
    epoch: int
    lines: tuple[str, ...]
    dropped_lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    TYPE: ClassVar[str] = "goodbye"
    reason: str = ""
    engines_stay: bool = True


# --- server to agent -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    TYPE: ClassVar[str] = "registered"
    session: int
    node_uid: str
    server_version: str
    heartbeat_seconds: float
    desired: Desired
    report_seconds: float = 180.0
    reconnect_spread_seconds: float = 5.0  # over how long to spread a reconnect after a mass start
    credential: str | None = field(default=None, repr=False)  # set when the identity is new


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    TYPE: ClassVar[str] = "start"
    command: int
    revision: int  # the node's desired revision that contains this order
    shard: DesiredShard


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    TYPE: ClassVar[str] = "stop"
    command: int
    revision: int
    shard: str
    epoch: int  # of the engine that it ends, never a newer one
    grace_seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    TYPE: ClassVar[str] = "drain"
    command: int
    revision: int
    shard: str
    epoch: int
    deadline_seconds: float = 600.0  # from the receipt: clocks are not compared
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Could this node run that? The checks before a launch, without one. An agent that is too old answers `error`."""

    TYPE: ClassVar[str] = "check"
    check: int
    spec: ShardSpec
    replaces: str = ""  # the shard whose cards it would take over: what that one holds counts as free


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    TYPE: ClassVar[str] = "sync"
    desired: Desired


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """Send a whole report with a fresh inventory now."""

    TYPE: ClassVar[str] = "refresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    TYPE: ClassVar[str] = "tail"
    shard: str
    epoch: int
    lines: int = 100


# --- both ways -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Something of the other side's can't be used. Closes nothing by itself."""

    TYPE: ClassVar[str] = "error"
    code: str
    detail: str
    hint: str = ""
    about: str = ""  # message type or shard that it is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    TYPE: ClassVar[str] = "ping"
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    TYPE: ClassVar[str] = "pong"
    number: int


BothWays = Error | Ping | Pong
FromAgent = Register | Heartbeat | Report | ShardStatus | Ack | Checked | LogChunk | Goodbye | BothWays
FromServer = Registered | Start | Stop | Drain | Check | Sync | Refresh | Tail | BothWays
Message = FromAgent | FromServer

FROM_AGENT: tuple[type, ...] = (
    *(Register, Heartbeat, Report, ShardStatus, Ack, Checked, LogChunk, Goodbye),
    *(Error, Ping, Pong),
)
FROM_SERVER: tuple[type, ...] = (
    *(Registered, Start, Stop, Drain, Check, Sync, Refresh, Tail),
    *(Error, Ping, Pong),
)
BY_TYPE: Mapping[str, type] = {kind.TYPE: kind for kind in (*FROM_AGENT, *FROM_SERVER)}  # type: ignore[attr-defined]
