"""The port that all processes listen on: one socket each, between which the kernel shares the connections out.

The parent opens them and keeps them open. So what waits in the queue of a process that ends is served by the next one.
"""

import socket

#: A child's exit code for a port that it can't have (EX_UNAVAILABLE of sysexits.h), and argparse's for a bad argument.
CANNOT_LISTEN, BAD_ARGUMENT = 69, 2
BACKLOG = 1024


def open_listener(listen: str) -> socket.socket:
    """`listen`: HOST:PORT. Raises OSError."""
    address, _, port = listen.rpartition(":")
    address = address.strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, int(port)))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
