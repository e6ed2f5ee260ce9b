"""One timer for all connections of a process: one for each request would cost it a microsecond."""

import asyncio
import json
import logging
from collections.abc import Collection
from typing import Protocol

log = logging.getLogger("routing")

EVERY_SECONDS = 0.5


class Watched(Protocol):
    def look(self, now: float) -> None:
        """Do what is due at `now`, the loop's time."""


class Watch:
    """Looks at every member now and then, as long as there are any."""

    def __init__(self, members: Collection[Watched]) -> None:
        self._members = members
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for member in list(self._members):
            try:
                member.look(now)
            except Exception as error:  # the others' timers go on
                log.error(json.dumps({"event": "broken", "what": "timers"}), exc_info=error)
        if self._members:
            self.begin()
