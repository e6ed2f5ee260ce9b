"""What happens to a shard. Each event names the attempt that it is about. Pure."""

from dataclasses import dataclass

from agent_client.machine.state import Failure, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered(Event):
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Event):
    """An earlier agent process started it. Not alive: something of it may be left all the same."""

    limits: Limits
    alive: bool
    ready: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Event):
    refused: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen(Event):
    """What would stand against an order once the attempt that it replaces has ended."""

    refused: Failure | None = None


class Spawned(Event):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSpawned(Event):
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(Event):
    phase: str
    place: int  # of the phase in the order of phases
    share: float | None = None  # of the phase, 0 to 1


class Answered(Event):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed(Event):
    """A question got no answer in its time; `refused`: nobody listened."""

    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked(Event):
    """The engine's own figures; None where it tells none."""

    requests: int | None = None  # running and waiting
    figures: tuple[float, ...] | None = None
    refused: bool = False  # nobody listens where they are shown


class Exited(Event):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Event):
    failure: Failure
    again: bool = False  # another port may do: somebody took this one after it had been chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked(Event):
    grace: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked(Event):
    seconds: float
    reason: str = ""


class DrainCancelled(Event):
    pass


class Emptied(Event):
    """No process is left and the cards were seen empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining(Event):
    what: str  # "processes 12, 13 do not die"


class Tick(Event):
    """Time has passed."""
