"""What an engine started as a daemon, without its session and environment, is ended with it where no cgroup helps."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_client.machine import Limits
from agent_client.protocol.messages import Desired
from agent_client.protocol.states import ShardState
from agent_client.supervisor import processes, traces
from tests.agent.test_agent import Node
from tests.agent.test_supervision import engine

#: Two forks, a session of its own, an empty environment; its output stays, as with most libraries.
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
time.sleep(600)
"""
#: One fork, a session of its own, an empty environment and no output.
QUIET = """
import os, time
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("FOLLOW_SECONDS", "STRAY_SECONDS"):
        monkeypatch.setattr(f"agent_client.supervisor.engine.{name}", 0.05)
    node = Node(tmp_path)
    node.limits = Limits(stuck=0.5, look=0.1, drain_look=0.1)
    node.again()
    yield node
    await node.supervisor.close(stop_engines=True)


async def launched(node: Node, script: str) -> tuple[int, int]:
    """The engine, and the daemon that it started; the latter by its program, which both have below them alone."""
    ordered = engine(node, script, stop_grace_seconds=1)  # makes a new supervisor
    await node.supervisor.start(ordered)
    pid = (await node.until(ShardState.LOADING)).pids[0]
    held = node.supervisor._engines["uid/0"].held(1)
    assert held is not None
    async with asyncio.timeout(20):
        while True:
            for each in {*held.children, *traces.writers(node.config.state_dir / "logs")} - {pid}:
                if (processes.PROC / str(each) / "comm").read_text().strip() == "sleep":
                    return pid, each
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("script", [DAEMON, QUIET])
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_daemon_ends_with_its_engine(node: Node, script: str, how: str) -> None:
    pid, daemon = await launched(node, script)
    assert daemon not in processes.marked(node.supervisor._ground.mark)
    if how == "stopped":
        await node.supervisor.stop("uid/0", 1, grace_seconds=1, reason="test")
        await node.until(ShardState.STOPPED)
    else:
        os.kill(pid, signal.SIGKILL)
        await node.until(ShardState.FAILED)
    assert processes.start_time(daemon) is None


async def test_a_daemon_whose_engine_ended_unseen_is_no_engine_and_is_ended(node: Node) -> None:
    """The agent was away, and its ledger is gone, too."""
    pid, daemon = await launched(node, DAEMON)
    await node.supervisor.close(stop_engines=False)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while processes.start_time(pid) is not None:
            await asyncio.sleep(0.02)
    (node.config.state_dir / "ledger.json").unlink()
    node.again()
    await node.supervisor.adopt()
    assert node.supervisor.reports() == ()
    assert daemon in node.supervisor.owned_pids()
    await node.supervisor.apply(Desired(revision=1))
    assert processes.start_time(daemon) is None


def test_who_reads_an_output_along_is_no_part_of_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "uid-0@3.log"
    log.parent.mkdir()
    log.touch()
    other = tmp_path / "logs" / "notes.txt"
    with log.open("ab") as ours, log.open("rb") as read, log.open("wb") as written, other.open("ab") as notes:
        children = [
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=out)
            for out in (ours, read, written, notes)
        ]
    try:
        assert traces.writers(tmp_path / "logs") == {children[0].pid: "uid/0@3"}
        log.unlink()
        assert traces.writers(tmp_path / "logs") == {children[0].pid: "uid/0@3"}
    finally:
        for child in children:
            child.kill()
            child.communicate()
