"""An engine's own cgroup: found where it is permitted, and then what has left group, session and marks is ended too."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_client import config
from agent_client.ledger import Ledger
from agent_client.machine import Limits
from agent_client.profile import EngineKind
from agent_client.protocol.states import ShardState
from agent_client.supervisor import cgroup, processes
from tests.agent.test_agent import Node, order


class Tree:
    """A cgroup file system of plain files, as the kernel would show it to one process."""

    def __init__(self, folder: Path, own: str) -> None:
        self.mount, self.proc = folder / "cgroup", folder / "proc"
        self.own = self.mount / own.lstrip("/")
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"4:memory:/v1\n0::{own}\n")
        for path in (self.own, *self.own.parents):
            if path.is_relative_to(self.mount):
                path.mkdir(parents=True, exist_ok=True)
                (path / "cgroup.procs").write_text("")
                (path / "cgroup.subtree_control").write_text("")
        (self.mount / "cgroup.controllers").write_text("cpu memory pids\n")

    def here(self) -> cgroup.Cgroups | None:
        return cgroup.here("mark", mounts=(Path("/none"), self.mount), proc=self.proc)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_client.supervisor.cgroup.os.geteuid", lambda: 1000)


def test_it_is_made_below_the_agents_own(tmp_path: Path, as_user: None) -> None:
    tree = Tree(tmp_path, "/user.slice/agent.service")
    found = tree.here()
    assert found
    assert found.base == tree.own


def test_it_is_made_beside_the_agents_own_where_memory_is_counted(tmp_path: Path, as_user: None) -> None:
    """As systemd's DelegateSubgroup= has it."""
    tree = Tree(tmp_path, "/system.slice/llmgw.service/agent")
    (tree.own.parent / "cgroup.subtree_control").write_text("memory pids\n")
    found = tree.here()
    assert found
    assert found.base == tree.own.parent


def test_root_leaves_what_was_not_delegated_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_client.supervisor.cgroup.os.geteuid", lambda: 0)
    tree = Tree(tmp_path, "/system.slice/llmgw.service")
    assert tree.here() is None
    monkeypatch.setattr("agent_client.supervisor.cgroup.os.getxattr", lambda path, name: b"1")
    assert tree.here()


@pytest.mark.parametrize("what", ["no mount", "no v2", "not writable"])
def test_without_the_right_nothing_is_said(
    what: str, tmp_path: Path, as_user: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path, "/a")
    match what:
        case "no mount":
            (tree.mount / "cgroup.controllers").unlink()
        case "no v2":
            (tree.proc / "self" / "cgroup").write_text("4:memory:/v1\n")
        case "not writable":
            monkeypatch.setattr("agent_client.supervisor.cgroup.os.access", lambda *_: False)
    assert tree.here() is None


def test_what_may_not_enter_is_started_all_the_same(tmp_path: Path) -> None:
    assert cgroup.Cgroups(tmp_path / "none", "mark").make("uid/0@1") == ""
    argv = cgroup.entering(str(tmp_path / "none"), ["echo", "$HOME", "a b"], os.environ["PATH"])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("$HOME a b\n", "")
    with pytest.raises(FileNotFoundError):
        cgroup.entering(str(tmp_path), ["no-such-program"], os.environ["PATH"])


def test_processes_are_told_by_label_and_others_cgroups_are_not_ours(tmp_path: Path) -> None:
    for name, text in (("llmgw.mark.uid%2F0@3", "7\n0\n8\n"), ("llmgw.other.uid%2F0@3", "9\n"), ("x", "10\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text(text)
    below = tmp_path / "llmgw.mark.uid%2F0@3" / "inner"
    below.mkdir()
    (below / "cgroup.procs").write_text("11\n")
    assert cgroup.Cgroups(tmp_path, "mark").marked() == dict.fromkeys((7, 8, 11), "uid/0@3")


def test_the_kernels_count_of_killed_processes(tmp_path: Path) -> None:
    assert cgroup.oom_kills(tmp_path) == 0
    (tmp_path / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert cgroup.oom_kills(tmp_path) == 2
    (tmp_path / "memory.events").write_bytes(b"\xff oom_kill")
    assert cgroup.oom_kills(tmp_path) == 0


# --- with the kernel's own -------------------------------------------------------------------------------------------


@pytest.fixture
def real() -> Iterator[Path]:
    """A cgroup to make others in; skipped where this machine permits none."""
    mount = next((each for each in cgroup.MOUNTS if (each / "cgroup.controllers").is_file()), None)
    own = None if mount is None else cgroup._of(Path("/proc/self"), mount)
    path = None if own is None else own / f"llmgw-test-{uuid.uuid4().hex[:8]}"
    try:
        assert path is not None
        path.mkdir()
    except (OSError, AssertionError):
        pytest.skip("this machine permits no cgroup of our own")
    yield path
    cgroup.kill(path)
    for _ in range(50):
        cgroup.remove(path)
        if not path.exists():
            break
        signal.sigtimedwait([], 0.05)


ESCAPE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
time.sleep(600)
"""


def test_a_process_in_it_is_seen_killed_and_gone(real: Path) -> None:
    ours = cgroup.Cgroups(real, "mark")
    path = Path(ours.make("uid/0@1"))
    child = subprocess.Popen(cgroup.entering(str(path), ["sleep", "60"], os.environ["PATH"]))
    while not ours.marked():
        assert child.poll() is None
    assert ours.marked() == {child.pid: "uid/0@1"}
    ours.sweep()
    assert path.exists()  # somebody is in it
    cgroup.kill(path)
    assert child.wait(10) == -9
    ours.sweep()
    assert not path.exists()


async def test_a_child_without_group_session_and_mark_is_ended_with_its_engine(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F27: whatever it left behind, nothing may stay on the cards."""
    monkeypatch.setattr("agent_client.supervisor.engine.FOLLOW_SECONDS", 0.05)
    node = Node(tmp_path)
    node.tools["cgroups"] = lambda mark: cgroup.Cgroups(real, mark)
    node.limits = Limits(stuck=0.5, look=0.1, drain_look=0.1)
    script = tmp_path / "engine.py"
    script.write_text(ESCAPE)
    engines = {EngineKind.VLLM: config.EnginePolicy(command=(sys.executable, str(script)))}
    node.config = dataclasses.replace(node.config, policy=dataclasses.replace(node.config.policy, engines=engines))
    node.again()
    await node.supervisor.start(order(engine="vllm", model="org/m"))
    pid = (await node.until(ShardState.LOADING)).pids[0]
    path = Path(Ledger(node.config.state_dir / "ledger.json").entries["uid/0"].cgroup)
    async with asyncio.timeout(20):
        while len(cgroup.pids(path)) < 2 or b"sleep" not in _names(cgroup.pids(path)):
            await asyncio.sleep(0.02)
    (escaped,) = cgroup.pids(path) - {pid}
    assert escaped not in processes.marked(node.supervisor._ground.mark)
    await node.supervisor.close(stop_engines=False)
    node.again()  # a restarted agent knows it too
    await node.supervisor.adopt()
    os.kill(pid, signal.SIGKILL)
    await node.until(ShardState.FAILED)
    assert processes.start_time(escaped) is None
    assert not path.exists()
    await node.supervisor.close(stop_engines=True)


def _names(pids: set[int]) -> bytes:
    out: Any = b""
    for pid in pids:
        try:
            out += Path(f"/proc/{pid}/comm").read_bytes()
        except OSError:
            continue
    return bytes(out)
