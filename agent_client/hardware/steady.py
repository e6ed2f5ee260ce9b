"""Problems come and go with hysteresis: a figure that flaps must not send an inventory and an event at each look.

Pure. What forbids a card counts at once; a warning counts when it is seen a second time. Either goes when it has been
absent twice. At the very first look everything counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_client.hardware.problems import UNPLACEABLE, placeable

APPEARS_AFTER = 2
GOES_AFTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One problem of one card over the last looks."""

    problem: Mapping[str, str]
    seen: int  # looks in a row with it
    absent: int = 0  # looks in a row without it
    shown: bool = False


Memory = Mapping[tuple[str, str], Track]  # (card, code)


def settle(memory: Memory | None, gpus: Sequence[Mapping[str, Any]]) -> tuple[Memory, list[dict[str, Any]]]:
    """The next memory, and the cards with the problems that count."""
    after: dict[tuple[str, str], Track] = {}
    out = []
    for number, gpu in enumerate(gpus):
        card = str(gpu.get("uuid") or gpu.get("bus") or f"#{number}")
        now = {problem["code"]: problem for problem in gpu["problems"]}
        before = {code: track for (key, code), track in (memory or {}).items() if key == card}
        for code in [*now, *(code for code in before if code not in now)]:
            track = _next(before.get(code), now.get(code), first=memory is None)
            if track is not None:
                after[card, code] = track
        shown = [dict(after[card, code].problem) for code in now if after[card, code].shown]
        shown += [dict(track.problem) for (key, code), track in after.items() if key == card and code not in now]
        out.append({**gpu, "problems": shown, "placeable": _usable(gpu) and placeable(shown)})
    return after, out


def forbidden(memory: Memory) -> frozenset[tuple[str, str]]:
    """The problems that keep something from being placed."""
    return frozenset(key for key, track in memory.items() if track.shown and track.problem["severity"] == UNPLACEABLE)


def _next(before: Track | None, now: Mapping[str, str] | None, *, first: bool) -> Track | None:
    if now is None:
        absent = before.absent + 1 if before else GOES_AFTER
        if before is None or not before.shown or absent >= GOES_AFTER:
            return None
        return Track(problem=before.problem, seen=0, absent=absent, shown=True)
    seen = (before.seen if before else 0) + 1
    at_once = first or now["severity"] == UNPLACEABLE or seen >= APPEARS_AFTER
    return Track(problem=now, seen=seen, shown=at_once or bool(before and before.shown))


def _usable(gpu: Mapping[str, Any]) -> bool:
    """Apart from its problems: engines need a UUID, and of a card in slices only the slices are placed on."""
    return gpu.get("uuid") is not None and gpu.get("mig_mode") != "enabled"
