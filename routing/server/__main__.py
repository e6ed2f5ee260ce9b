"""`python -m routing.server`: one router child. Serves from the routes file alone, whatever else is down."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from routing.dataplane.client import ClientConnection
from routing.dataplane.router import Router
from routing.server.parent import CANNOT_LISTEN
from routing.table import RoutingTable, TableError, load

log = logging.getLogger("routing")

POLL_SECONDS = 1.0
USAGE_SECONDS = 1.0


class UsageSpool:
    """Usage as JSON lines on disk; files end in `.ready` when whole, for whoever takes them in."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rows: list[dict[str, Any]] = []
        self._number = 0

    def add(self, row: dict[str, Any]) -> None:
        if self._folder is not None:
            self._rows.append(row)

    def flush(self) -> None:
        if not self._rows or self._folder is None:
            return
        self._number += 1
        name = self._folder / f"usage-{os.getpid()}-{time.time_ns()}-{self._number}"
        text = "".join(json.dumps(row) + "\n" for row in self._rows)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            name.with_suffix(".new").write_text(text, encoding="utf-8")
            name.with_suffix(".new").replace(name.with_suffix(".ready"))
        except OSError as error:  # kept in memory, up to a bound, until the disk takes it
            log.error("usage.unwritten error=%s", error.strerror)
            self._rows = self._rows[-100_000:]
            return
        self._rows = []


async def serve(args: argparse.Namespace) -> int:
    path = Path(args.routes)
    try:
        table = load(path)
    except TableError as error:
        log.warning("routes.missing %s", error)
        table = RoutingTable(keys_complete=False, loaded=False)
    spool = UsageSpool(Path(args.usage_dir) if args.usage_dir else None)
    cors = [origin.encode() for origin in args.cors_origin]
    router = Router(table, no_auth=args.no_auth, cors=cors, on_usage=spool.add)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    address, _, port = args.listen.rpartition(":")
    try:
        listener = _listener(address.strip("[]"), int(port))
    except OSError as error:
        sys.stderr.write(f"cannot listen on {args.listen}: {error.strerror}\n")
        return CANNOT_LISTEN
    server = await loop.create_server(lambda: ClientConnection(router), sock=listener)
    tasks = [loop.create_task(_reload(router, path, args.control_fd)), loop.create_task(_spool(spool))]
    await stopped.wait()
    router.stopping = True
    server.close()
    deadline = time.monotonic() + args.drain_seconds
    while router.clients and time.monotonic() < deadline:
        for client in list(router.clients):
            client.close_when_idle()
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    spool.flush()
    return 0


def _listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((address, port))
    sock.listen(1024)
    sock.setblocking(False)
    return sock


async def _reload(router: Router, path: Path, control_fd: int | None) -> None:
    """Read the file when told to, and when its time has changed. A bad one leaves the last good one in place."""
    told = asyncio.Event()
    if control_fd is not None:
        loop = asyncio.get_running_loop()

        def readable() -> None:
            try:
                if not os.read(control_fd, 4096):
                    loop.remove_reader(control_fd)  # the parent is gone: the poll goes on
            except OSError:
                loop.remove_reader(control_fd)
            told.set()

        loop.add_reader(control_fd, readable)
    seen = 0
    while True:
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime_ns  # noqa: ASYNC240  (a local file's stat takes microseconds)
            if changed != seen:
                try:
                    router.table = load(path)
                    seen = changed
                except TableError as error:
                    log.error("routes.bad %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), POLL_SECONDS)
        told.clear()


async def _spool(spool: UsageSpool) -> None:
    while True:
        await asyncio.sleep(USAGE_SECONDS)
        spool.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m routing.server")
    parser.add_argument("--routes", required=True, help="the routes file")
    parser.add_argument("--listen", default="127.0.0.1:8080")
    parser.add_argument("--control-fd", type=int, default=None)
    parser.add_argument("--usage-dir", default="")
    parser.add_argument("--drain-seconds", type=float, default=600.0)
    parser.add_argument("--no-auth", action="store_true")
    parser.add_argument("--cors-origin", action="append", default=[])
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if args.no_auth:
        log.warning("router.no_auth: every request is served WITHOUT a key")
    return uvloop.run(serve(args))


if __name__ == "__main__":
    sys.exit(main())
