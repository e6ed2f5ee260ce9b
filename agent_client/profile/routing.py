"""How the router serves one model: timers, places, waiting, and who gets which request. Nothing of it restarts one.

The names are those of the routes file (routing/table.py reads it); what is left out has the router's default.
"""

import re
from dataclasses import dataclass, field, fields
from typing import Any

from agent_client.profile.problems import Fields, Problem

_HEADER = re.compile(r"[A-Za-z0-9-]{1,60}\Z")
_LONGEST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimers:
    """Seconds that an engine may take; None: as long as it likes. docs/router-http.md says what each measures."""

    connect: float = 2.0
    first_byte: float | None = None
    between_bytes: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    timers: EngineTimers = field(default_factory=EngineTimers)
    concurrency: int = 0  # requests at once over all replicas; 0: no limit
    queue: int = 100  # how many more may wait for a place
    queue_seconds: float = 30.0  # and for how long
    hold_seconds: float = 0.0  # how long a request waits for a model that is loading
    affinity: bool = True  # requests with the same beginning go to the same replica
    sticky: str = ""  # requests with the same value of this header do

    def to_dict(self) -> dict[str, Any]:
        """Plain data that read_routing reads back; defaults are left out."""
        out: dict[str, Any] = {"timers": timers} if (timers := _changed(self.timers)) else {}
        return out | {name: value for name, value in _changed(self).items() if name != "timers"}


def read_routing(data: Any, where: str, problems: list[Problem]) -> Routing:
    """Notes problems in the caller's list."""
    given, default = Fields(data, where, problems), Routing()
    timers = _timers(given.raw("timers"), f"{where}.timers", problems)
    sticky = given.text("sticky")
    if sticky and not _HEADER.match(sticky):
        given.note(
            "bad_header",
            "sticky",
            f"cannot use {where}.sticky = {sticky[:80]!r}: the name of a header is needed, of letters, digits and "
            "hyphens, up to 60",
            "X-Session-Id",
        )
    routing = Routing(
        timers=timers,
        concurrency=given.integer("concurrency", default.concurrency, least=0, most=1_000_000),
        queue=given.integer("queue", default.queue, least=0, most=1_000_000),
        queue_seconds=given.number("queue_seconds", default.queue_seconds, least=0, most=_LONGEST_SECONDS),
        hold_seconds=given.number("hold_seconds", default.hold_seconds, least=0, most=_LONGEST_SECONDS),
        affinity=given.boolean("affinity", default.affinity),
        sticky=sticky,
    )
    given.refuse_unknown()
    return routing


def _timers(data: Any, where: str, problems: list[Problem]) -> EngineTimers:
    given, default = Fields({} if data is None else data, where, problems), EngineTimers()
    timers = EngineTimers(
        connect=given.number("connect", default.connect, above=0, most=300.0),
        first_byte=given.number("first_byte", None, above=0, most=_LONGEST_SECONDS),
        between_bytes=given.number("between_bytes", None, above=0, most=_LONGEST_SECONDS),
        total=given.number("total", None, above=0, most=_LONGEST_SECONDS),
    )
    given.refuse_unknown()
    for name in ("first_byte", "between_bytes"):
        value = getattr(timers, name)
        if value is not None and timers.total is not None and value >= timers.total:
            given.note(
                "timer_without_effect",
                name,
                f"cannot use {where}.{name} = {value:g}: {where}.total = {timers.total:g} ends every answer before",
                f"lower {name}, or raise total",
            )
    return timers


def _changed(given: Any) -> dict[str, Any]:
    default = type(given)()
    return {
        item.name: value
        for item in fields(given)
        if (value := getattr(given, item.name)) != getattr(default, item.name)
    }
