"""Looks at the machine again and again: often where that costs little, and at once when a card has left the bus."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent_client.hardware import presence
from agent_client.hardware.discovery import Discovery
from agent_client.hardware.inventory import Inventory

#: Between two looks at most, unless the node's owner wants longer.
LONGEST_SECONDS = 30.0
#: So many times as long as a look took is the pause after it: looking may cost a twentieth of one core at most.
REST = 20.0
#: Between two glances at which cards are on the bus.
GLANCE_SECONDS = 2.0
#: So many of the longest pauses without an inventory, and it is stale.
_STALE_AFTER = 3


class Watch:
    """The newest inventory, for all who ask. Looks are made one at a time, whichever thread wants one."""

    def __init__(self, discovery: Discovery, *, pause_seconds: float, devices: Path = presence.DEVICES) -> None:
        """`pause_seconds`: between two looks at least."""
        self.inventory: Inventory | None = None
        self._discovery = discovery
        self._least, self._devices = pause_seconds, devices
        self._seen_at = time.monotonic()
        self._took = 0.0
        self._on_the_bus: frozenset[str] = frozenset()
        self._eyes = threading.Lock()

    @property
    def stale_seconds(self) -> float | None:
        """The inventory's age, when it is older than it should be."""
        age = time.monotonic() - self._seen_at
        return round(age, 1) if age > _STALE_AFTER * max(self._least, LONGEST_SECONDS) else None

    @property
    def fingerprint(self) -> str:
        return self.inventory.fingerprint() if self.inventory else ""

    def look(self) -> Inventory:
        """Blocks for as long as the hardware makes it."""
        with self._eyes:
            began = time.monotonic()
            self.inventory = self._discovery.look()
            self._seen_at = time.monotonic()
            self._took = self._seen_at - began
            buses = {str(gpu["bus"]) for gpu in self.inventory.to_json().get("gpus", []) if gpu.get("bus")}
            self._on_the_bus = presence.present(buses, self._devices)
            return self.inventory

    async def run(self, on_change: Callable[[], None]) -> None:
        """For ever. What a look by somebody else has found is told too."""
        told = self.fingerprint
        while True:
            await self._pause()
            await asyncio.to_thread(self.look)
            if self.fingerprint != told:
                told = self.fingerprint
                on_change()

    async def _pause(self) -> None:
        until = time.monotonic() + pause(self._took, self._least)
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, GLANCE_SECONDS))
            on_the_bus = self._on_the_bus
            if on_the_bus and await asyncio.to_thread(presence.present, on_the_bus, self._devices) != on_the_bus:
                return


def pause(took: float, least: float) -> float:
    """After a look that took so long, in seconds.

    >>> [pause(took, 4.0) for took in (0.1, 0.5, 5.0)], pause(0.1, 60.0)
    ([4.0, 10.0, 30.0], 60.0)
    """
    return max(least, min(REST * took, LONGEST_SECONDS))
