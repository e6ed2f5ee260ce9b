"""Which endpoint gets a request: not draining, not ejected, fewest outstanding for its weight."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Choosable(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def draining(self) -> bool: ...


@dataclass(slots=True)
class Load:
    """What this process knows of an endpoint; outlives reloads of the table."""

    outstanding: int = 0
    failures: int = 0  # in a row
    ejected_until: float = 0.0  # the caller's clock
    turn: int = 0  # when it was last chosen: ties go round


T = TypeVar("T", bound=Choosable)

EJECT_FIRST_SECONDS = 1.0
EJECT_LONGEST_SECONDS = 30.0


def pick(endpoints: Sequence[T], loads: Mapping[str, Load], *, now: float, exclude: Collection[str] = ()) -> T | None:
    """The best endpoint, or None. When all are ejected all count again: a model is never lost to ejection alone."""
    able = [e for e in endpoints if not e.draining and e.weight > 0 and e.id not in exclude]
    fit = [e for e in able if loads[e.id].ejected_until <= now] or able
    if not fit:
        return None
    return min(fit, key=lambda e: ((loads[e.id].outstanding + 1) / e.weight, loads[e.id].turn))


def failed(load: Load, *, now: float) -> None:
    """A connection failed: out of the choice for 1 s x 2 per failure in a row, up to 30 s."""
    load.failures += 1
    pause = min(EJECT_FIRST_SECONDS * 2 ** min(load.failures - 1, 10), EJECT_LONGEST_SECONDS)
    load.ejected_until = now + pause


def succeeded(load: Load) -> None:
    load.failures = 0
    load.ejected_until = 0.0
