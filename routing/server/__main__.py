"""`python -m routing.server`: one router child. Serves from the routes file alone, whatever else is down."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import uvloop

from routing.dataplane.client import ClientConnection
from routing.dataplane.journal import Journal
from routing.dataplane.messages import BODY_BYTES
from routing.dataplane.router import Router
from routing.dataplane.usage_files import Spool, UsageLog
from routing.server.listening import CANNOT_LISTEN, open_listener
from routing.server.shared import Shared
from routing.table import RoutingTable, TableError, is_fresh, load

log = logging.getLogger("routing")

POLL_SECONDS = 1.0
TELL_SECONDS = 1.0


async def serve(args: argparse.Namespace) -> int:
    path = Path(args.routes)
    try:
        table = load(path)
    except TableError as error:
        log.warning("routes.missing %s", error)
        table = RoutingTable(keys_complete=False, loaded=False)
    cors = [origin.encode() for origin in args.cors_origin]
    shared = Shared(Path(args.shared_dir) if args.shared_dir else None, args.grid_fd)
    log_file = None if args.no_access_log else sys.stderr.fileno()
    journal = Journal(_usage(args), log_file)
    router = Router(
        table,
        no_auth=args.no_auth,
        cors=cors,
        body_bytes=args.max_body_mib * 2**20,
        on_usage=journal.usage,
        on_line=None if args.no_access_log else journal.line,
        grid=shared.grid,
        metrics=shared.all_metrics,
        lost=journal.lost,
    )
    shared.resume(router)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        listener = socket.socket(fileno=args.listen_fd) if args.listen_fd is not None else open_listener(args.listen)
    except OSError as error:
        sys.stderr.write(f"cannot listen on {args.listen}: {error.strerror}\n")
        return CANNOT_LISTEN
    server = await loop.create_server(lambda: ClientConnection(router), sock=listener)
    journal.start()
    tasks = [
        loop.create_task(_reload(router, path, args.control_fd)),
        loop.create_task(_tell(router, shared, journal)),
    ]
    if args.ready_fd is not None:
        os.write(args.ready_fd, b"ready\n")
        os.close(args.ready_fd)
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
    router.chooser.close()
    journal.close()
    shared.tell(router)
    return 0


def _usage(args: argparse.Namespace) -> Spool | UsageLog | None:
    if args.usage_dir:
        return Spool(Path(args.usage_dir))
    return UsageLog(Path(args.usage_log)) if args.usage_log else None


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
        router.keys_fresh = is_fresh(path, time.time())
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


async def _tell(router: Router, shared: Shared, journal: Journal) -> None:
    """Say now and then how this process is; the journal's thread writes it."""
    written = shared.text(router)
    journal.chores.append(lambda: shared.write(written))
    while True:
        await asyncio.sleep(TELL_SECONDS)
        written = shared.text(router)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m routing.server")
    parser.add_argument("--routes", required=True, help="the routes file")
    parser.add_argument("--listen", default="127.0.0.1:8080")
    parser.add_argument("--listen-fd", type=int, default=None, help="an open listener, instead of --listen")
    parser.add_argument("--ready-fd", type=int, default=None, help="told when requests are taken")
    parser.add_argument("--shared-dir", default="", help="what the processes share: counts and metrics")
    parser.add_argument(
        "--grid-fd", type=int, default=None, help="the shared counts, open; else a file in --shared-dir"
    )
    parser.add_argument("--no-access-log", action="store_true")
    parser.add_argument("--control-fd", type=int, default=None)
    parser.add_argument("--usage-dir", default="", help="usage as files that the feed takes in")
    parser.add_argument("--usage-log", default="", help="usage as lines of one file, where there is no feed")
    parser.add_argument("--drain-seconds", type=float, default=600.0)
    parser.add_argument("--no-auth", action="store_true")
    parser.add_argument("--cors-origin", action="append", default=[])
    parser.add_argument("--max-body-mib", type=int, default=BODY_BYTES // 2**20)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if args.no_auth:
        log.warning("router.no_auth: every request is served WITHOUT a key")
    return uvloop.run(serve(args))


if __name__ == "__main__":
    sys.exit(main())
