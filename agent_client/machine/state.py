"""What is known of one shard on its node: frozen values that the table turns into newer ones. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState

S = ShardState

#: Questions unanswered in a row: then it gets no new requests; then it is given up.
SUSPECT, DEAD = 2, 3
#: Connections refused in a row, by an engine that was ready: it can't come back. One that is busy accepts.
CLOSED = 3
REFUSED_PAUSE = 2.0
PROBE_FIRST = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long what may take, in seconds."""

    start: float = 1800.0  # without any progress, from the spawn to the first answer
    grace: float = 30.0  # between TERM and KILL
    stuck: float = 5.0  # after KILL, until it is said that something does not die; then between two more tries
    look: float = 5.0  # between two looks at a ready engine's figures
    drain_look: float = 1.0
    quiet: float = 30.0  # without a sign of life, until a ready engine is asked for one token
    hung: float = 90.0  # without a sign of life while its figures stand still, and three questions unanswered
    answers: bool = True  # False above rank 0: those serve nobody
    terminates: bool = True  # False: TERM means nothing to it, it ends when its first rank has ended


class Why(StrEnum):
    """What is to be explained about a failure."""

    EXITED = "exited"
    NOT_READY = "not_ready"
    HUNG = "hung"
    CLOSED = "closed"  # its port, while its process lives


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    code: str
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    epoch: int
    limits: Limits
    state: ShardState = S.ASSIGNED
    code: str = ""
    detail: str = ""
    hint: str = ""
    phase: str = ""
    progress: float | None = None
    reached: tuple[int, float] = (0, 0.0)  # the farthest that loading got: place of the phase, share of it
    started_at: float = 0.0
    sign_at: float = 0.0  # last sign of life: progress, a moving figure, an answer
    deadline_at: float | None = None  # of the state: loading, draining, stopping
    probe_at: float | None = None  # None: none is due
    probing: bool = False
    overdue: bool = False  # the time to load is over
    last: bool = False  # the question under way was asked after that, and decides
    pause: float = PROBE_FIRST  # between two questions while it loads
    misses: int = 0
    refusals: int = 0
    figures: tuple[float, ...] | None = None  # whatever of the engine's counters moves when it works
    blind: bool = True  # the last look showed no figures
    idle: int = 0
    spawning: bool = False  # a spawn was begun and has not come back
    killed: bool = False
    empty: bool = False
    reason: str = ""  # why it was asked to end
    left: str = ""  # what is still there of it
    failure: Failure | None = None
    failing: bool = False  # it ends as failed, not as stopped
    undecided: bool = False  # it ended while it loaded: whether another port would do is not known yet
    respawns: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED_SHARD_STATES

    @property
    def suspect(self) -> bool:
        return self.state is S.READY and self.misses >= SUSPECT

    @property
    def stalled_at(self) -> float | None:
        """Since when there was no sign of life, of one that owes an answer."""
        return self.sign_at if self.state is S.READY and self.misses else None

    @property
    def shown(self) -> ShardState:
        """What is reported: a suspect takes no new requests until it has proved itself again; a respawn is no news."""
        hidden = self.suspect or self.undecided or (self.respawns > 0 and self.state is S.LAUNCHING)
        return S.LOADING if hidden else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    attempt: Attempt | None = None
    following: Attempt | None = None  # ordered while the one before it is there
