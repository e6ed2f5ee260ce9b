"""Whatever ledger an agent finds: what lives and is wanted is taken back, what is not ours is left alone."""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_client.ledger import VERSION, Entry, Ledger
from agent_client.protocol.codec import plain_part
from agent_client.protocol.messages import Desired
from agent_client.protocol.states import ShardState
from agent_client.supervisor import cgroup, processes
from tests.agent.test_agent import Node, order
from tests.support.examples import examples


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    node = Node(tmp_path)
    yield node
    await node.supervisor.close(stop_engines=True)


def leaders(node: Node) -> list[int]:
    marked = processes.marked(node.supervisor._ground.mark)
    out = []
    for pid in marked:
        with contextlib.suppress(ProcessLookupError):
            out += [pid] if os.getpgid(pid) == pid else []
    return out


def ledger_of(node: Node) -> Path:
    return node.config.state_dir / "ledger.json"


def write(path: Path, data: Any) -> None:
    """With a right checksum."""
    body = json.dumps(data).encode()
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


async def restart(node: Node) -> None:
    node.again()
    node.reports.clear()
    await node.supervisor.adopt()


async def ready(node: Node, epoch: int) -> int:
    async with asyncio.timeout(20):
        while True:
            for report in node.reports:
                if (report.epoch, report.state) == (epoch, ShardState.READY):
                    return report.pids[0]
            await asyncio.sleep(0.02)


async def two_epochs(node: Node) -> tuple[bytes, int]:
    """The ledger as it was at epoch 1, and the process of epoch 2."""
    await node.supervisor.start(order(1))
    await ready(node, 1)
    old = ledger_of(node).read_bytes()
    await node.supervisor.start(order(2))
    pid = await ready(node, 2)
    await node.supervisor.close(stop_engines=False)
    return old, pid


# --- older copies ----------------------------------------------------------------------------------------------------


async def test_an_engine_beside_an_older_copy_of_the_ledger_is_taken_back_and_not_joined(node: Node) -> None:
    old, pid = await two_epochs(node)
    ledger_of(node).write_bytes(old)
    await restart(node)
    assert [(report.epoch, report.pids) for report in node.supervisor.reports()] == [(2, (pid,))]
    await node.supervisor.apply(Desired(revision=1, shards=(order(2),)))
    assert await ready(node, 2) == pid
    assert leaders(node) == [pid]
    known = Ledger(ledger_of(node))
    assert (known.entries["uid/0"].epoch, known.highest_epoch("uid/0")) == (2, 2)
    with contextlib.suppress(Exception):
        await node.supervisor.start(order(1))
    assert leaders(node) == [pid]


@pytest.mark.parametrize("desired", [(), (order(3),)])
async def test_an_engine_beside_an_older_copy_is_ended_when_it_is_not_wanted(node: Node, desired: Any) -> None:
    old, pid = await two_epochs(node)
    ledger_of(node).write_bytes(old)
    await restart(node)
    await node.supervisor.apply(Desired(revision=1, shards=desired))
    assert processes.start_time(pid) is None
    if desired:
        assert [await ready(node, 3)] == leaders(node)


async def test_an_order_that_comes_alone_ends_what_was_found_of_its_shard_first(node: Node) -> None:
    old, pid = await two_epochs(node)
    ledger_of(node).write_bytes(old)
    await restart(node)
    await node.supervisor.start(order(3))
    assert [await ready(node, 3)] == leaders(node)
    assert processes.start_time(pid) is None
    assert {report.epoch for report in node.supervisor.reports()} == {3}


@pytest.mark.parametrize("known", ["another try", "before the spawn", "a later epoch"])
async def test_a_live_engine_beside_a_dead_entry_is_adopted(node: Node, known: str) -> None:
    """A port that was taken makes a second try of one epoch; a copy may be of before the spawn, or from the future."""
    await node.supervisor.start(order(2))
    pid = await ready(node, 2)
    await node.supervisor.close(stop_engines=False)
    ledger = Ledger(ledger_of(node))
    entry = ledger.entries["uid/0"]
    port = entry.port
    gone = subprocess.Popen(["true"])
    gone.wait()
    match known:
        case "another try":
            entry.pid, entry.start_time, entry.port, entry.endpoint = gone.pid, 1, 1, "http://127.0.0.1:1"
        case "before the spawn":
            entry.pid = entry.start_time = 0
            entry.ready = False
        case _:
            entry.epoch, entry.pid = 9, 0
    ledger.record(entry)
    await restart(node)
    await node.supervisor.apply(Desired(revision=1, shards=(order(2),)))
    assert await ready(node, 2) == pid
    assert leaders(node) == [pid]
    found = Ledger(ledger_of(node)).entries["uid/0"]
    assert (found.pid, found.port, found.epoch) == (pid, port, 2)
    assert not [report for report in node.reports if report.state in (ShardState.FAILED, ShardState.STOPPING)]


async def test_nothing_of_a_shard_lives_beside_its_start_whatever_accounts_for_it(node: Node) -> None:
    """The last guard: were it overlooked at the start, the second would still not come."""
    await two_epochs(node)
    ledger_of(node).unlink()
    await restart(node)
    found = node.supervisor._found.pop("uid/0@2")
    await node.supervisor.start(order(2))
    new = await ready(node, 2)
    assert new != found.pid
    assert leaders(node) == [new]


# --- what is not ours ------------------------------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Another agent's engine: it leads a session, and carries another mark and the same label."""
    env = {**os.environ, processes.STATE_VARIABLE: "another agent's", processes.SHARD_VARIABLE: "uid/0@1"}
    with subprocess.Popen(["sleep", "600"], env=env, start_new_session=True) as child:
        yield child
        child.kill()


@pytest.mark.parametrize("boot", ["boot", "an earlier boot"])
async def test_another_agents_ledger_ends_none_of_its_engines(
    node: Node, stranger: subprocess.Popen[bytes], boot: str, tmp_path: Path
) -> None:
    """After a boot, too, a pid and a tick may name somebody else."""
    log = tmp_path / "log of another"
    log.write_text("x" * 5_000_000)
    entry = Entry(shard="uid/0", epoch=1, boot_id=boot, port=1, pid=stranger.pid, ready=True, log_path=str(log))
    entry.start_time = processes.start_time(stranger.pid) or 0
    entry.spec = plain_part(order().spec)
    entry.cgroup = "/sys/fs/cgroup/system.slice"
    Ledger(ledger_of(node)).record(entry)
    node.config = dataclasses.replace(node.config, log_bytes=65_536)
    await restart(node)
    await node.until(ShardState.FAILED)
    await node.supervisor.apply(Desired(revision=1))
    assert stranger.poll() is None
    assert log.stat().st_blocks * 512 >= 4_000_000
    await node.supervisor.start(order(2))
    assert [await ready(node, 2)] == leaders(node)
    assert stranger.poll() is None


def test_a_recorded_cgroup_counts_only_where_its_name_is_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "MOUNTS", (tmp_path,))
    ours = cgroup.Cgroups(tmp_path / "now", "mark")
    name = ours._path("uid/0@1").name
    for path in (tmp_path / "before" / name, tmp_path / "before" / "other", tmp_path / "now"):
        path.mkdir(parents=True)
    assert ours.known(str(tmp_path / "before" / name), "uid/0@1") == str(tmp_path / "before" / name)
    assert ours.known(str(tmp_path / "before" / "other"), "uid/0@1") == ""
    assert ours.known(str(tmp_path / "before" / name), "uid/0@2") == ""
    assert ours.known(str(tmp_path / "before" / ".." / "before" / name), "uid/0@1") == ""
    (tmp_path / "now" / name).mkdir()
    assert ours.known("", "uid/0@1") == str(tmp_path / "now" / name)


# --- nonsense with a right checksum ----------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [field.name for field in dataclasses.fields(Entry)]
SPEC = [field.name for field in dataclasses.fields(type(order().spec))]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, int, dict[str, Any]]]:
    """An engine that lives through all examples, and what its ledger holds."""
    node = Node(tmp_path_factory.mktemp("node"))

    async def begin() -> Any:
        await node.supervisor.start(order(3))
        await ready(node, 3)
        held = node.supervisor._engines["uid/0"].held(3)
        await node.supervisor.close(stop_engines=False)
        return held.child if held else None

    async def end() -> None:
        await restart(node)
        await node.supervisor.apply(Desired(revision=9))
        await node.supervisor.close(stop_engines=True)

    child = asyncio.run(begin())  # its loop, which would reap it, is gone
    data = json.loads(ledger_of(node).read_bytes().partition(b"\n")[2])
    try:
        yield node, child.pid, data
    finally:
        asyncio.run(end())
        child.wait()


@given(data=st.data())
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_ledger_with_a_right_checksum_is_read_and_loses_no_engine(
    running: tuple[Node, int, dict[str, Any]], data: st.DataObject
) -> None:
    node, pid, right = running
    whole = json.loads(json.dumps(right))
    match data.draw(st.sampled_from(["all", "top", "entry", "spec", "more", "version"])):
        case "all":
            whole = data.draw(JSON)
        case "top":
            whole[data.draw(st.sampled_from(["entries", "epochs", "version"]))] = data.draw(JSON)
        case "entry":
            whole["entries"][0][data.draw(st.sampled_from(FIELDS))] = data.draw(JSON)
        case "spec":
            whole["entries"][0]["spec"][data.draw(st.sampled_from(SPEC))] = data.draw(JSON)
        case "more":
            whole["entries"].append(
                {
                    **whole["entries"][0],
                    **data.draw(
                        st.fixed_dictionaries(
                            {},
                            optional={
                                "shard": st.sampled_from(["uid/0", "other/0", "../../x/0", "", "\x00/0", "\ud800/0"]),
                                "epoch": st.integers(-2, 9),
                                "pid": st.sampled_from([0, 1, -1, pid, 2**22, 2**70]),
                            },
                        )
                    ),
                }
            )
        case _:
            whole["version"] = VERSION + 1
    write(ledger_of(node), whole)

    async def live() -> None:
        await restart(node)
        await node.supervisor.apply(Desired(revision=1, shards=(order(3),)))
        assert await ready(node, 3) == pid
        await node.supervisor.close(stop_engines=False)

    asyncio.run(live())
    assert leaders(node) == [pid]


@pytest.mark.parametrize("depth", [900, 200_000])
def test_a_ledger_nested_without_end_is_lost(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "ledger.json"
    body = b'{"entries": [], "epochs": ' + b"[" * depth + b"]" * depth + b"}"
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert Ledger(path).lost


def test_a_ledger_of_a_later_version_is_lost_and_its_new_fields_are_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    entry = {"shard": "s/0", "epoch": 1, "boot_id": "b", "port": 1}
    write(path, {"version": VERSION, "entries": [{**entry, "new": [1]}], "epochs": {"s/0": 1}, "more": 1})
    assert Ledger(path).entries["s/0"].epoch == 1
    write(path, {"entries": [entry], "epochs": {}})  # of before versions
    assert Ledger(path).entries
    write(path, {"version": VERSION + 1, "entries": [entry], "epochs": {}})
    assert Ledger(path).lost


def test_status_tells_of_a_ledger_that_it_can_not_use(tmp_path: Path) -> None:
    write(tmp_path / "ledger.json", {"entries": [{"shard": 7}], "epochs": []})
    argv = [
        sys.executable,
        "-m",
        "agent_client",
        "--server",
        "ws://127.0.0.1:1",
        "--state-dir",
        str(tmp_path),
        "status",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ledger: unreadable" in done.stdout
