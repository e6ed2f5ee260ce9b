"""Which endpoint gets a request: not draining, not ejected, and of those the one with the fewest requests outstanding
for its weight, unless another has the request's beginning in its cache and is no busier than the average.

Within a process the choice is exact. Where several processes choose at the same time, each takes the better of two
drawn ones: all would otherwise take the same best one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from routing.domain.ejection import Health

#: A stream that waits so long for its next byte, while none comes to any other of the same engine, makes it one that
#: is passed over as long as others are there. Short, since it costs nobody anything: a long prefill is passed over too.
SILENT_SECONDS = 5.0


class Choosable(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def draining(self) -> bool: ...


@dataclass(slots=True)
class Load:
    """What is known of an endpoint; outlives reloads of the table."""

    outstanding: int = 0  # of this process
    elsewhere: int = 0  # of the others, as last counted
    turn: int = 0  # when it was last chosen: ties go round
    streams: int = 0  # of those of this process: what owes bytes all the time
    owing_since: float = 0.0  # when the first of these was begun
    moved_at: float = 0.0  # when bytes of an answer last came, or the first of those outstanding was begun
    health: Health = field(default_factory=Health)
    out_elsewhere: bool = False  # another process leaves it out, and asks it whether it is back

    @property
    def out(self) -> bool:
        return self.out_elsewhere or bool(self.health.reason)

    def silent(self, now: float) -> bool:
        return self.streams > 0 and now - max(self.moved_at, self.owing_since) >= SILENT_SECONDS

    @property
    def total(self) -> int:
        return self.outstanding + self.elsewhere


T = TypeVar("T", bound=Choosable)


def routable(
    endpoints: Sequence[T], loads: Mapping[str, Load], exclude: Collection[str] = ()
) -> tuple[Sequence[T], bool]:
    """Who may be chosen, and whether that is panic: when all are ejected all count, so that a model is never lost to
    ejection alone."""
    able = [e for e in endpoints if not e.draining and e.weight > 0 and e.id not in exclude]
    fit = [e for e in able if not loads[e.id].out]
    return (fit, False) if fit or not able else (able, True)


def speaking(fit: Sequence[T], loads: Mapping[str, Load], now: float) -> Sequence[T]:
    """Those that are not silent; all of them when none is. Silence is no proof of anything, so nobody is ejected."""
    heard = [e for e in fit if not loads[e.id].silent(now)]
    return heard or fit


def pick(
    fit: Sequence[T],
    loads: Mapping[str, Load],
    *,
    preferred: str | None = None,
    draws: tuple[float, float] | None = None,
) -> T | None:
    """The best of these. `draws`, from 0 to below 1, say which two are looked at; None: look at all."""
    if len(fit) < 2:
        return fit[0] if fit else None
    if preferred is not None and (liked := next((e for e in fit if e.id == preferred), None)) is not None:
        # Never above the average, so that what is cached can't pile requests up. Measured in benchmarks/choice: a
        # quarter of a request more finds 2 of 100 bytes more cached, but the slowest hundredth may wait 17 % longer.
        total, weights = sum(loads[e.id].total for e in fit), sum(e.weight for e in fit)
        if loads[liked.id].total * weights <= total * liked.weight:
            return liked
    if draws is not None and len(fit) > 2:
        first = _drawn(fit, draws[0])
        fit = (first, _drawn([e for e in fit if e is not first], draws[1]))
    return min(fit, key=lambda e: ((loads[e.id].total + 1) / e.weight, loads[e.id].turn))


def _drawn(fit: Sequence[T], draw: float) -> T:
    """By weight: a heavy one shall be looked at more often."""
    left = draw * sum(e.weight for e in fit)
    for each in fit:
        left -= each.weight
        if left < 0:
            return each
    return fit[-1]
