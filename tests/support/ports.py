"""Ports that nobody else on this machine is given: not another test process, and not a client's connection.

The kernel picks clients' ports from its ephemeral range, so a port that was free a moment ago may be one side of a
connection now. Ours lie below that range (32,768 on: ip(7)), in blocks; a process owns a block while it holds the
block's first port.
"""

import socket
from itertools import cycle

FIRST, BLOCK, BLOCKS = 10_000, 100, 100  # below the agent's default range, 20000-20999

_guard: socket.socket | None = None
_next: "cycle[int]"


def free_port() -> int:
    return free_ports(1).start


def free_ports(count: int) -> range:
    """`count` ports in a row that bind on loopback now; they come round again after about a block's length."""
    if _guard is None:
        _own_a_block()
    found: list[int] = []
    for _ in range(2 * BLOCK):
        port = next(_next)
        if found and port != found[-1] + 1:
            found = []
        found = [*found, port] if _binds(port) else []
        if len(found) == count:
            return range(found[0], port + 1)
    raise AssertionError(f"cannot find {count} free ports in a row: {BLOCK - 1} are this process's own")


def _own_a_block() -> None:
    global _guard, _next
    for first in range(FIRST, FIRST + BLOCK * BLOCKS, BLOCK):
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        guard.listen(1)  # only a listening socket keeps out those who bind with SO_REUSEADDR
        _guard, _next = guard, cycle(range(first + 1, first + BLOCK))
        return
    raise AssertionError("cannot find a block of ports that no other test process owns")


def _binds(port: int) -> bool:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections do not count
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
