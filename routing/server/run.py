"""`python -m routing.server.run`: what `manage.py router` becomes. Keeps the router's processes, and holds no Django.

Two things need Django, and each has a process of its own: the feed, which runs where there is a control plane, and the
reading of a catalog file after SIGHUP, which ends.
"""

import sys

if __name__ == "__main__":
    # asyncio does without it where it is missing; nothing here speaks TLS, and it is 2 MiB.
    sys.modules["ssl"] = None  # type: ignore[assignment]

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TypedDict

from routing import grid_file
from routing.server.listening import open_listener
from routing.server.parent import ChildSet, environment

#: What a child has after its drain, to write its last usage, and what the feed has then, to take that in.
LAST_SECONDS, FEED_SECONDS = 10.0, 10.0


class Order(TypedDict):
    """What the router shall be, as JSON on the command line: a parser for arguments would be a tenth of all that this
    process holds in memory."""

    folder: str  # where routes, usage and counts are
    listen: str
    processes: int
    drain_seconds: float
    passed: list[str]  # arguments of each child
    catalog: bool  # the routes come from a file: there is no feed
    passing: bool  # the folder ends with this process
    reread: list[str]  # the command that writes the routes anew


def main() -> int:
    order: Order = json.loads(sys.argv[1])
    try:
        return asyncio.run(_run(order))
    finally:
        if order["passing"]:
            import shutil

            shutil.rmtree(order["folder"], ignore_errors=True)


async def _run(order: Order) -> int:
    folder, listen, drain_seconds = Path(order["folder"]), order["listen"], order["drain_seconds"]
    try:
        listeners = [open_listener(listen) for _ in range(order["processes"])]
    except OSError as error:
        sys.stderr.write(f"cannot listen on {listen}: {error.strerror}; give another --listen\n")
        return 1
    sys.stdout.write(f"the router listens on http://{listen}\n")
    sys.stdout.flush()
    argv = ["--routes", str(folder / "routes.json"), "--listen", listen]
    argv += ["--shared-dir", str(folder / "router"), "--drain-seconds", str(drain_seconds), *order["passed"]]
    grid = _grid(order)
    argv += ["--grid-fd", str(grid)]
    stop_seconds = drain_seconds + LAST_SECONDS
    routers = ChildSet(argv, order["processes"], stop_seconds=stop_seconds, listeners=listeners, handed=[grid])
    loop = asyncio.get_running_loop()
    feed = None if order["catalog"] else _feed(folder, routers)
    tasks: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if feed is not None:
            feed.renew()
        tasks.add(task := loop.create_task(_renew(routers, order["reread"])))
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
        sys.stderr.write(f"cannot serve on {listen}: the router's processes ended with code {code}\n")
    return int(code != 0)


def _grid(order: Order) -> int:
    """The file descriptor of the counts that the children share: in memory where they would end with this process
    anyway, and where the disk does not take them."""
    path = Path(order["folder"], "router", "grid")
    if order["passing"]:
        path.parent.mkdir(parents=True, exist_ok=True)  # what the processes tell each other beside their counts
        return grid_file.in_memory()
    try:
        return grid_file.on_disk(path)
    except OSError as error:
        sys.stderr.write(
            f"cannot keep the counts of limits in {path}: {error.strerror} ({grid_file.SIZE_BYTES // 10**6} MB are "
            "wanted); this run counts in memory, and what it counts ends with it; make room and start it again\n"
        )
        return grid_file.in_memory()


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
