"""`python -m routing.server.run`: what `manage.py router` becomes. Keeps the router's processes, and holds no Django.

Two things need Django, and each has a process of its own: the feed, which runs where there is a control plane, and the
reading of a catalog file after SIGHUP, which ends.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from routing.server.listening import open_listener
from routing.server.parent import ChildSet, environment

#: What a child has after its drain, to write its last usage, and what the feed has then, to take that in.
LAST_SECONDS, FEED_SECONDS = 10.0, 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m routing.server.run")
    parser.add_argument("--folder", type=Path, required=True, help="where routes, usage and counts are")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--drain-seconds", type=float, required=True)
    parser.add_argument(
        "--reread", type=json.loads, default=[], help="the command that writes the routes anew, as JSON"
    )
    parser.add_argument("--temporary", action="store_true", help="the folder ends with this process; there is no feed")
    args, rest = parser.parse_known_args()
    try:
        return asyncio.run(_run(args, rest))
    finally:
        if args.temporary:
            shutil.rmtree(args.folder, ignore_errors=True)


async def _run(args: argparse.Namespace, rest: list[str]) -> int:
    folder: Path = args.folder
    try:
        listeners = [open_listener(args.listen) for _ in range(args.processes)]
    except OSError as error:
        sys.stderr.write(f"cannot listen on {args.listen}: {error.strerror}; give another --listen\n")
        return 1
    argv = ["--routes", str(folder / "routes.json"), "--listen", args.listen, "--usage-dir", str(folder / "usage")]
    argv += ["--shared-dir", str(folder / "router"), "--drain-seconds", str(args.drain_seconds), *rest]
    stop_seconds = args.drain_seconds + LAST_SECONDS
    routers = ChildSet(argv, args.processes, stop_seconds=stop_seconds, listeners=listeners)
    loop = asyncio.get_running_loop()
    feed = None if args.temporary else _feed(folder, routers)
    tasks: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if feed is not None:
            feed.renew()
        tasks.add(task := loop.create_task(_renew(routers, args.reread)))
        task.add_done_callback(tasks.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, routers.stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    feeding = loop.create_task(feed.run()) if feed is not None else None
    code = await routers.run()
    if feed is not None and feeding is not None:  # the last, so that it sees the children's last usage
        feed.stop()
        await feeding
    if code:
        sys.stderr.write(f"cannot serve on {args.listen}: the router's processes ended with code {code}\n")
    return int(code != 0)


def _feed(folder: Path, routers: ChildSet) -> ChildSet:
    """It says by a pipe that the routes have changed."""
    changed, told = os.pipe()
    os.set_blocking(changed, False)
    os.set_blocking(told, False)

    def on_change() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(changed, 4096)
        routers.notify_reload()

    asyncio.get_running_loop().add_reader(changed, on_change)
    argv = ["--folder", str(folder), "--told-fd", str(told)]
    program = [sys.executable, "-m", "django", "router_feed"]
    return ChildSet(argv, 1, stop_seconds=FEED_SECONDS, program=program, handed=[told])


async def _renew(routers: ChildSet, reread: list[str]) -> None:
    """The routes first, where they come from a file; what is wrong with it, it says itself."""
    if reread:
        process = await asyncio.create_subprocess_exec(*reread, env=environment())
        if await process.wait() != 0:
            sys.stderr.write("the old routes stay\n")
    routers.renew()


if __name__ == "__main__":
    sys.exit(main())
