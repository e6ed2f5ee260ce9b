"""Ports for engines, out of the range that the node's owner gives: each is tried, and none is given twice."""

import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable

#: Between the answer here and the caller's own record of it, on which the next answers rest.
PROMISED_SECONDS = 2.0


class Ports:
    """Thread-safe: two starts at the same time get different ports.

    `owner` says where in the range to begin: an engine may bind its port a minute after it was tried, and until then a
    second agent on the machine must not find it free.
    """

    def __init__(
        self, ports: range, address: str, *, owner: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        begin = zlib.crc32(owner.encode()) % len(ports) if owner else 0
        self._parts = (ports[begin:], ports[:begin])
        self._address, self._now = address, now
        self._promised: dict[int, float] = {}
        self._lock = threading.Lock()

    def take(self, taken: Iterable[int], count: int = 1) -> range | None:
        """`count` ports in a row that bind; None when there are none. `taken`: those of engines that run."""
        with self._lock:
            now, used = self._now(), set(taken)
            self._promised = {port: until for port, until in self._promised.items() if until > now}
            found = next((row for part in self._parts if (row := self._row(part, used, count)) is not None), None)
            self._promised.update(dict.fromkeys(found or (), now + PROMISED_SECONDS))
            return found

    def _row(self, part: range, used: set[int], count: int) -> range | None:
        begin = part.start
        for port in part:
            if port in used or port in self._promised or not is_free(port, self._address):
                begin = port + 1
            elif port - begin + 1 == count:
                return range(begin, port + 1)
        return None


def is_free(port: int, address: str) -> bool:
    """On the node's address, and on all: an engine's own processes meet on other addresses than it serves on."""
    six = ":" in address
    return _binds(port, address, six=six) and _binds(port, "::" if six else "0.0.0.0", six=six)


def _binds(port: int, address: str, *, six: bool) -> bool:
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
