"""Tells a client that has only said all it has to say (a half-closed one) from one that is gone.

Both look the same until something is written: then a host whose socket is closed answers with a reset. So after a
client's end, and while nothing is read of it, something harmless is written now and then, and the kernel is asked
whether the reset came.
"""

import asyncio
import socket
from collections.abc import Callable

_TCP_CLOSE = 7  # include/net/tcp_states.h
FIRST_SECONDS = 0.001
EVERY_SECONDS = 0.5


class Sounding:
    def __init__(self, transport: asyncio.Transport, nudge: Callable[[], None]) -> None:
        """`nudge` writes something that does not change the answer, where that is possible now."""
        self._transport = transport
        self._nudge = nudge
        self._pause = FIRST_SECONDS
        nudge()
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if _is_reset(self._transport):
            self._transport.abort()
            return
        self._pause = min(self._pause * 2, EVERY_SECONDS)
        if self._pause >= EVERY_SECONDS:
            self._nudge()
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)


def _is_reset(transport: asyncio.Transport) -> bool:
    # No event says so: the loop no longer watches a socket whose end it has read.
    sock = transport.get_extra_info("socket")
    state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return bool(state[0] == _TCP_CLOSE)
