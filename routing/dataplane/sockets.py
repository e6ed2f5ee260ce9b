"""What the kernel is told of a connection."""

import asyncio
import socket

#: A host that vanished says nothing, and an engine's silence has no limit: after 30 s of it the kernel asks, 4 times.
SILENT_SECONDS, ASK_SECONDS, ASK_TIMES = 30, 10, 4
#: What was sent to such a host is not repeated for the kernel's quarter of an hour.
UNHEARD_SECONDS = 60
#: What the kernel may hold of an answer that it can't send yet; without this it is megabytes for each slow client.
UNSENT_BYTES = 128 * 1024
#: Fixed (the kernel doubles it), because a window that the kernel tunes lets an engine run far ahead of a client that
#: has stopped: after a fast gigabyte 13 to 39 MB without these two numbers, some 7 to 8 with them (of which 3 to 4,
#: rarely 16, in the client's own kernel) at the same throughput (245 against 227 MB/s, medians of 3).
RECEIVE_BYTES = 256 * 1024


def of_client(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    _ask(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def of_engine(transport: asyncio.BaseTransport) -> None:
    sock = transport.get_extra_info("socket")
    _ask(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_SECONDS * 1000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)


def _ask(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASK_TIMES)
