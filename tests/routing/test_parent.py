"""The parent of the router's processes: what stops, what is started again, and what is given up."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from routing.server.listening import CANNOT_LISTEN
from routing.server.parent import ChildSet
from tests.e2e.harness import PATIENCE
from tests.routing.stage import until, wait
from tests.support.ports import free_port

STUBBORN = "import signal, time, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
STUBBORN += "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"


def child_set(code: str, *argv: str, stop_seconds: float = 5.0) -> ChildSet:
    return ChildSet(list(argv), 1, stop_seconds=stop_seconds, program=[sys.executable, "-c", code])


async def test_a_stop_during_a_spawn_is_not_lost() -> None:
    children = child_set("import time; time.sleep(600)")
    running = asyncio.ensure_future(children.run())
    await asyncio.sleep(0)  # the spawn is under way, its child not yet known
    await asyncio.sleep(0)
    children.stop()
    assert await wait(running, 5) == 0


async def test_a_stop_during_the_pause_ends_it() -> None:
    children = child_set("raise SystemExit(3)")
    running = asyncio.ensure_future(children.run())
    await asyncio.sleep(2 * PATIENCE)  # some restarts: the pause is long by now
    assert not running.done()
    children.stop()
    assert await wait(running, 0.3) == 0


async def test_a_child_that_ignores_term_is_killed(tmp_path: Path) -> None:
    children = child_set(STUBBORN, str(tmp_path / "up"), stop_seconds=0.3)
    running = asyncio.ensure_future(children.run())
    await until((tmp_path / "up").exists, "the child")
    children.stop()
    assert await wait(running, 3) == 0


async def test_a_busy_port_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        listen = f"127.0.0.1:{stranger.getsockname()[1]}"
        children = ChildSet(["--routes", str(tmp_path / "routes.json"), "--listen", listen], 2)
        assert await wait(children.run(), 15) == CANNOT_LISTEN


async def test_a_child_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd starts a program: with a full path, in `/`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        listen = f"127.0.0.1:{stranger.getsockname()[1]}"
        children = ChildSet(["--routes", str(tmp_path / "routes.json"), "--listen", listen], 1)
        assert await wait(children.run(), 15) == CANNOT_LISTEN  # it got as far as that


async def test_a_child_that_served_is_started_again(tmp_path: Path) -> None:
    port = free_port()
    children = ChildSet(["--routes", str(tmp_path / "routes.json"), "--listen", f"127.0.0.1:{port}"], 1)
    running = asyncio.ensure_future(children.run())

    async def pid() -> int:
        await until(lambda: _connects(port), "the router")
        return next(iter(children.pids))

    first = await pid()
    os.kill(first, signal.SIGKILL)
    await until(lambda: first not in children.pids, "its end")
    assert await pid() != first
    children.stop()
    assert await wait(running, 10) == 0


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
