"""What the supervisor is to do, and which event it answers with. Pure."""

from dataclasses import dataclass

from agent_client.machine.state import Attempt, Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    epoch: int


class Check(Effect):
    """Preflight; → Checked."""


class Foresee(Effect):
    """Preflight of an order while the attempt that it replaces still runs; → Foreseen."""


class Spawn(Effect):
    """Remember, then spawn; → Spawned or NotSpawned."""


class Watch(Effect):
    """See its exit, its output and its figures; → Exited, Progressed, Looked."""


class Probe(Effect):
    """Ask for one token; → Answered or Missed."""


class Remember(Effect):
    """That it is ready."""


class SendTerm(Effect):
    pass


class SendKill(Effect):
    pass


class CheckEmpty(Effect):
    """Look until nothing is left; → Remaining, at last Emptied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain(Effect):
    """Find the cause in what it wrote until now; → Explained."""

    why: Why
    seconds: float  # how long it was waited for


class Forget(Effect):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Effect):
    attempt: Attempt


Effects = tuple[Effect, ...]
