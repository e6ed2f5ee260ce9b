"""Supervision with real processes: starts that move or stick, silence, drains, what is left behind, output."""

import asyncio
import dataclasses
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agent_client import config, probes
from agent_client.engines import Miss, Probed, Readiness
from agent_client.hardware.leftovers import still_held
from agent_client.ledger import Ledger
from agent_client.machine import Limits
from agent_client.profile import EngineKind
from agent_client.protocol.messages import Desired, DesiredShard, ShardReport
from agent_client.protocol.states import FailureCode, ShardState
from agent_client.supervisor import Figures, processes
from tests.agent.test_agent import Node, order
from tests.e2e.harness import ROOT
from tests.support.ports import free_port

SHORT = Limits(stuck=0.3, look=0.1, drain_look=0.1, quiet=0.3, hung=1.0)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("FOLLOW_SECONDS", "STRAY_SECONDS"):
        monkeypatch.setattr(f"agent_client.supervisor.engine.{name}", 0.05)
    node = Node(tmp_path)
    node.limits = SHORT
    node.again()
    yield node
    node.tools.clear()
    await node.supervisor.close(stop_engines=True)


def engine(node: Node, script: str, **profile: Any) -> Any:
    """An order for a program of our own in vLLM's place."""
    path = node.config.state_dir / "engine.py"
    path.write_text(script)
    engines = {EngineKind.VLLM: config.EnginePolicy(command=(sys.executable, str(path)))}
    node.config = dataclasses.replace(node.config, policy=dataclasses.replace(node.config.policy, engines=engines))
    node.again()
    return order(engine="vllm", model="org/m", **profile)


async def until(node: Node, check: Any, seconds: float = 20.0) -> ShardReport:
    async with asyncio.timeout(seconds):
        while not (found := [report for report in node.reports if check(report)]):
            await asyncio.sleep(0.02)
    return found[0]


def post(url: str, words: str = "hi", **fields: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": words}], **fields}
    headers = {"Authorization": "Bearer CANARY", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", data=json.dumps(body).encode(), headers=headers)
    return urllib.request.urlopen(asked, timeout=30)


# --- the start -------------------------------------------------------------------------------------------------------


class Clock:
    """The supervisor's time. Once stopped only a test moves it, however long the machine takes over something."""

    def __init__(self) -> None:
        self.now: float | None = None

    def stop(self) -> None:
        self.now = time.monotonic()

    def add(self, seconds: float) -> None:
        if self.now is not None:
            self.now += seconds

    def monotonic(self) -> float:
        return time.monotonic() if self.now is None else self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("agent_client.supervisor.engine.time", found)
    return found


async def loading(node: Node) -> Any:
    """An engine that only sleeps; the test itself writes its output."""
    await node.supervisor.start(engine(node, "import time; time.sleep(600)", stop_grace_seconds=0))
    await node.until(ShardState.LOADING)
    log = Path(node.config.state_dir / "logs" / "uid-0@1.log")

    def write(percent: int) -> None:
        with log.open("a") as file:
            file.write(f"(Worker_TP0 pid=7) Loading safetensors checkpoint shards: {percent}% Completed | 1/8\n")

    return write


async def test_a_slow_load_that_moves_is_not_killed_and_is_shown(node: Node, clock: Clock) -> None:
    """F25, failures 36: the limit is half an hour without progress; this one takes four hours."""
    clock.stop()
    write = await loading(node)
    shown = [0.0, 0.12, 0.24, 0.36, 0.48, 0.60, 0.72, 0.84]
    for share in shown:
        write(round(share * 100))
        await until(node, lambda report, share=share: report.phase == "weights" and report.progress == share)
        clock.add(1750)
    clock.add(100)
    failed = await node.until(ShardState.FAILED)
    assert failed.code == FailureCode.START_TIMEOUT
    assert "84% Completed" in failed.detail
    assert [report.progress for report in node.reports if report.phase == "weights"] == shown


async def test_a_load_that_goes_round_in_circles_is_stuck(node: Node, clock: Clock) -> None:
    clock.stop()
    write = await loading(node)
    write(12)
    await until(node, lambda report: report.progress == 0.12)
    clock.add(1750)
    for percent in (0, 12, 0, 12):
        write(percent)
        await asyncio.sleep(0.1)
    clock.add(100)
    assert (await node.until(ShardState.FAILED)).code == FailureCode.START_TIMEOUT


async def test_a_port_that_was_taken_after_its_choice_costs_another_port_and_no_failure(node: Node) -> None:
    """F32."""
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        ports = iter([squatter.getsockname()[1], free_port()])
        node.tools["free_ports"] = lambda taken, count: range(port := next(ports), port + count)
        script = """
import os, sys
port = sys.argv[sys.argv.index("--port") + 1]
name = sys.argv[sys.argv.index("--served-model-name") + 1]
os.environ["LLMGW_ENGINE_KEY"] = os.environ["VLLM_API_KEY"]
os.execv(sys.executable, [sys.executable, ECHO, "--port", port, "--served-model-name", name])
"""
        echo = ROOT / "agent_client" / "programs" / "echo_server.py"
        first = engine(node, script.replace("ECHO", repr(str(echo))))
        await node.supervisor.start(first)
        ready = await node.until(ShardState.READY)
    assert ready.endpoint
    assert [report.state for report in node.reports if report.state not in (ShardState.LOADING, ShardState.READY)] == [
        ShardState.VALIDATING,
        ShardState.LAUNCHING,
    ]
    assert ready.tail == ()


async def test_ten_starts_at_once_take_ten_ports(tmp_path: Path) -> None:
    """F32."""
    node = Node(tmp_path, ports=40)
    try:
        for number in range(10):
            await node.supervisor.start(dataclasses.replace(order(), shard=f"uid{number}/0"))
        async with asyncio.timeout(45):
            while not all(report.state is ShardState.READY for report in node.supervisor.reports()):
                await asyncio.sleep(0.05)
        assert len({report.endpoint for report in node.supervisor.reports()}) == 10
    finally:
        await node.supervisor.close(stop_engines=True)


# --- silence ---------------------------------------------------------------------------------------------------------


async def test_an_engine_that_is_healthy_and_makes_no_token_is_unrouted_and_ended(node: Node) -> None:
    """F30, failures 35."""
    await node.supervisor.start(order(extra_args=["--crash-on", "never"]))
    ready = await node.until(ShardState.READY)
    os.kill(ready.pids[0], signal.SIGSTOP)  # frozen: the kernel still accepts its connections
    node.reports.clear()
    limits = []

    async def no_answer(endpoint: str, readiness: Readiness, *_: Any) -> Probed:
        limits.append(readiness.answer_seconds)
        return Probed(miss=Miss.SILENT)

    async def standing(*_: Any) -> Figures:
        return Figures(running=1, waiting=0, moving=(7.0,))

    def blame(**tools: Any) -> None:
        ground = node.supervisor._ground
        replaced = dataclasses.replace(ground, tools=dataclasses.replace(ground.tools, probe=no_answer, **tools))
        node.supervisor._engines["uid/0"]._ground = replaced

    blame()  # neither page answers, so what it does is not seen here
    doubted = await node.until(ShardState.LOADING)
    assert doubted.stalled_seconds
    await asyncio.sleep(2 * SHORT.hung)
    assert node.reports[-1].state is ShardState.LOADING
    node.reports.clear()
    blame(load=standing)
    failed = await node.until(ShardState.FAILED)
    assert failed.code == FailureCode.HUNG
    assert set(limits) == {10.0}  # half a minute of quiet and two of these: unrouted within a minute
    assert node.reports[0].state is ShardState.STOPPING
    assert failed.record
    assert failed.record["argv"]


async def test_a_busy_engine_is_neither_asked_nor_restarted(node: Node, clock: Clock) -> None:
    """F31: what moves in its figures proves that it lives; each look at them takes a tenth of the quiet time."""
    asked = []

    async def load(endpoint: str, key: str | None) -> Figures:
        clock.add(0.1)
        found = await asyncio.to_thread(probes.load, endpoint, key=key)
        return Figures(running=found.running, waiting=found.waiting, moving=found.moving)

    async def no_answer(*_: Any) -> Probed:
        asked.append(1)
        return Probed(miss=Miss.SILENT)

    node.tools["load"] = load
    node.limits = dataclasses.replace(SHORT, quiet=1.0)
    node.again()
    await node.supervisor.start(order(extra_args=["--chunk-delay", "0.1"]))
    ready = await node.until(ShardState.READY)
    ground = node.supervisor._ground
    broken = dataclasses.replace(ground, tools=dataclasses.replace(ground.tools, probe=no_answer))
    node.supervisor._engines["uid/0"]._ground = broken
    clock.stop()
    begun = clock.monotonic()
    answer = await asyncio.to_thread(lambda: post(ready.endpoint or "", "word " * 20, stream=True).read())
    assert b"[DONE]" in answer
    assert clock.monotonic() > begun + 1.0
    assert not asked
    assert node.reports[-1].state is ShardState.READY


CLOSES = """
import http.server, json, os, signal, socket, sys, threading, time
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        length = int(self.headers["Content-Length"] or 0)
        self.rfile.read(length)
        body = json.dumps({"data": [{"id": "m"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
def close(*_):
    print("shutting down", flush=True)
    server.socket.close()
signal.signal(signal.SIGTERM, close)
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    time.sleep(60)
"""


async def test_an_engine_that_lives_without_its_port_is_failed_for_that(node: Node) -> None:
    """vLLM, told to end in the middle of its first token: its server has closed its port and waits for ever."""
    await node.supervisor.start(engine(node, CLOSES, stop_grace_seconds=30))
    ready = await node.until(ShardState.READY)
    os.kill(ready.pids[0], signal.SIGTERM)
    node.reports.clear()
    failed = await node.until(ShardState.FAILED)
    port = (ready.endpoint or "").rpartition(":")[2]
    assert failed.code == FailureCode.PORT_CLOSED
    assert f"cannot go on with m/1: it no longer listens on port {port}, while its process lives" in failed.detail
    assert "its last line: shutting down" in failed.detail
    assert processes.start_time(ready.pids[0]) is None


# --- drains ----------------------------------------------------------------------------------------------------------


async def test_a_drain_waits_for_what_runs_and_then_stops(node: Node) -> None:
    """Failures 39."""
    await node.supervisor.start(order(extra_args=["--chunk-delay", "0.1"]))
    ready = await node.until(ShardState.READY)
    answer = asyncio.create_task(asyncio.to_thread(lambda: post(ready.endpoint or "", "word " * 8, stream=True).read()))
    while not (await asyncio.to_thread(probes.load, ready.endpoint or "", key="CANARY")).running:
        await asyncio.sleep(0.02)
    await node.supervisor.drain("uid/0", 1, deadline_seconds=20, reason="test")
    await node.until(ShardState.STOPPED)
    assert answer.done()
    assert b"[DONE]" in await answer


async def test_a_drain_has_a_deadline_and_can_be_cancelled(node: Node) -> None:
    """Failures 39."""
    await node.supervisor.start(order(2, extra_args=["--chunk-delay", "0.5"]))
    ready = await until(node, lambda report: report.epoch == 2 and report.state is ShardState.READY)
    stream = post(ready.endpoint or "", "word " * 60, stream=True)
    await node.supervisor.drain("uid/0", 2, deadline_seconds=60, reason="test")
    await node.until(ShardState.DRAINING)
    await node.supervisor.apply(Desired(revision=1, shards=(order(2),)))
    assert node.reports[-1].state is ShardState.READY
    await node.supervisor.drain("uid/0", 2, deadline_seconds=0.5, reason="test")
    async with asyncio.timeout(5):
        await node.until(ShardState.STOPPED)
    stream.close()


# --- what is left behind ---------------------------------------------------------------------------------------------

DOUBLE_FORK = """
import mmap, os, sys, time
segment = os.open({segment!r}, os.O_CREAT | os.O_RDWR)
os.ftruncate(segment, 4096)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = mmap.mmap(segment, 4096)
        held[0] = 1
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


async def test_what_a_killed_engine_left_is_ended_before_anything_new_starts(node: Node) -> None:
    """F27."""
    segment = f"/dev/shm/psm_llmgw_test_{os.getpid()}"
    first = engine(node, DOUBLE_FORK.format(segment=segment))
    await node.supervisor.start(first)
    pid = (await node.until(ShardState.LOADING)).pids[0]
    async with asyncio.timeout(10):
        while len(node.supervisor.owned_pids()) < 2 or not os.path.exists(segment):
            await asyncio.sleep(0.02)
    children = node.supervisor.owned_pids() - {pid}
    os.kill(pid, signal.SIGKILL)
    await node.supervisor.start(dataclasses.replace(first, epoch=2))
    launched = await until(node, lambda report: report.epoch == 2 and report.state is ShardState.LAUNCHING)
    assert launched
    assert all(processes.start_time(child) is None for child in children)
    assert not os.path.exists(segment)


async def test_cards_are_free_only_when_they_were_seen_empty(node: Node) -> None:
    """F27, failures 12."""
    held = ["GPU 1 (GPU-x) is still held by pid 4242 (70000 MiB), which ended"]
    node.tools["holders"] = lambda gpus: held[0] if held else ""
    node.tools["preflight"] = lambda profile, spec: None
    node.again()
    first = order()
    spec = dataclasses.replace(first.spec, gpus=("GPU-x",))
    await node.supervisor.start(dataclasses.replace(first, spec=spec))
    await node.until(ShardState.READY)
    await node.supervisor.stop("uid/0", 1, grace_seconds=0.2, reason="test")
    stuck = await node.until(ShardState.STOP_STUCK)
    assert "pid 4242" in stuck.detail
    assert node.supervisor.owned_gpus() == {"GPU-x"}
    held.clear()
    await node.until(ShardState.STOPPED)
    assert node.supervisor.owned_gpus() == set()


async def test_an_order_on_cards_of_an_engine_that_lives_here_is_refused_whoever_gave_it(node: Node) -> None:
    """The control plane waits for cards; a node does not take its word for it."""
    node.tools["preflight"] = lambda profile, spec: None
    node.again()

    def on_cards(shard: str, *gpus: str) -> DesiredShard:
        one = order()
        return dataclasses.replace(one, shard=shard, spec=dataclasses.replace(one.spec, replica=shard, gpus=gpus))

    await node.supervisor.start(on_cards("a/0", "GPU-1", "GPU-2"))
    first = await until(node, lambda report: report.shard == "a/0" and report.state is ShardState.READY)
    await node.supervisor.close(stop_engines=False)
    node.again()
    await node.supervisor.adopt()  # what an earlier agent started counts as well
    await node.supervisor.start(on_cards("b/0", "GPU-2", "GPU-3"))
    refused = await until(node, lambda report: report.shard == "b/0" and report.state is ShardState.FAILED)
    assert refused.code == FailureCode.GPU_BUSY
    assert "cannot start b/0: GPU GPU-2 is held by a/0 (epoch 1), which this node runs" in refused.detail
    await node.supervisor.start(on_cards("c/0", "GPU-3"))
    await until(node, lambda report: report.shard == "c/0" and report.state is ShardState.READY)
    os.kill(first.pids[0], signal.SIGKILL)
    await until(node, lambda report: report.shard == "a/0" and report.state is ShardState.FAILED)
    await node.supervisor.start(on_cards("d/0", "GPU-1"))
    await until(node, lambda report: report.shard == "d/0" and report.state is ShardState.READY)


def test_a_dead_holder_is_named_and_a_living_stranger_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    dead = {"pid": 4242, "memory_mib": 70000}
    card = {"uuid": "GPU-x", "index": 1, "memory_used_mib": 70000, "processes": [dead]}
    assert "pid 4242 (70000 MiB)" in still_held({"gpus": [card]}, ["GPU-x"], tmp_path)
    assert not still_held({"gpus": [{**card, "processes": [{"pid": 77}]}]}, ["GPU-x"], tmp_path)
    assert "70000 MiB" in still_held({"gpus": [{**card, "processes": []}]}, ["GPU-x"], tmp_path)
    assert not still_held({"gpus": [{**card, "processes": [], "memory_used_mib": 4}]}, ["GPU-x"], tmp_path)
    assert not still_held({"gpus": []}, ["GPU-x"], tmp_path)  # it fell off the bus: nothing to wait for


async def test_sglang_above_rank_0_is_not_termed_but_waited_for(node: Node, tmp_path: Path) -> None:
    mark, over = tmp_path / "termed", tmp_path / "over"
    script = f"""
import signal, sys, time, pathlib
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path({str(mark)!r}).write_text("x"))
while not pathlib.Path({str(over)!r}).exists():
    time.sleep(0.02)
"""
    path = tmp_path / "rank.py"
    path.write_text(script)
    engines = {EngineKind.SGLANG: config.EnginePolicy(command=(sys.executable, str(path)))}
    node.config = dataclasses.replace(node.config, policy=dataclasses.replace(node.config.policy, engines=engines))
    node.again()
    first = order(engine="sglang", model="org/m", nodes=2, tensor_parallel=2, gpus=None, stop_grace_seconds=20)
    spec = dataclasses.replace(first.spec, rank=1, nodes=2, rendezvous_address="127.0.0.1", rendezvous_port=29_501)
    await node.supervisor.start(dataclasses.replace(first, spec=spec))
    pid = (await node.until(ShardState.READY)).pids[0]
    await node.supervisor.stop("uid/0", 1, grace_seconds=20, reason="test")
    await node.until(ShardState.STOPPING)
    over.touch()
    await node.until(ShardState.STOPPED)  # it ended by itself, as it does when rank 0 has gone
    assert processes.start_time(pid) is None
    assert not mark.exists()


# --- evidence --------------------------------------------------------------------------------------------------------


async def test_the_record_of_a_failed_attempt_is_whole_and_holds_no_secret(node: Node) -> None:
    node.tools["surroundings"] = lambda spec, profile: {"engine": "0.32.0", "driver": "580.65", "gpus": []}
    script = "import os, sys\nprint('vLLM', os.environ['VLLM_API_KEY'])\nraise ValueError('no such thing')\n"
    first = engine(node, script, env={"HF_TOKEN": "hf_CANARY", "A": "1"})
    await node.supervisor.start(first)
    report = await node.until(ShardState.FAILED)
    record = dict(report.record or {})
    assert record["argv"][0] == sys.executable
    assert record["env"]["A"] == "1"
    assert record["driver"] == "580.65"
    assert record["head"][0] == "vLLM (secret)"
    assert record["exception"] == "ValueError: no such thing"
    assert record["oom_killed"] is False
    assert "CANARY" not in json.dumps(record)


async def test_a_kill_that_the_kernel_told_of_is_named(node: Node) -> None:
    node.tools["oom_killed"] = lambda pids: True
    node.again()
    await node.supervisor.start(order())
    pid = (await node.until(ShardState.READY)).pids[0]
    os.kill(pid, signal.SIGKILL)
    report = await node.until(ShardState.FAILED)
    assert (report.code, report.exit_signal) == ("killed-oom", 9)


# --- disks and ledgers -----------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_new_starts_and_ends_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures 14."""
    await node.supervisor.start(order())
    first = await node.until(ShardState.READY)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("agent_client.ledger.os.fsync", full)
        await node.supervisor.start(dataclasses.replace(order(), shard="other/0"))
        refused = await until(node, lambda report: report.shard == "other/0" and report.state is ShardState.FAILED)
        assert refused.code == FailureCode.STATE_UNWRITABLE
        assert "No space left" in refused.detail
        assert processes.start_time(first.pids[0]) is not None
    await node.supervisor.start(dataclasses.replace(order(2), shard="other/0"))
    await until(node, lambda report: report.shard == "other/0" and report.state is ShardState.READY)


async def test_an_engine_whose_output_finds_no_room_serves_on(node: Node) -> None:
    """Failures 14."""
    logs = node.config.state_dir / "logs"
    logs.mkdir()
    (logs / "uid-0@1.log").symlink_to("/dev/full")
    await node.supervisor.start(order())
    ready = await node.until(ShardState.READY)
    assert post(ready.endpoint or "").status == 200


@pytest.mark.parametrize("how", ["gone", "torn", "flipped"])
async def test_a_lost_ledger_ends_no_engine(node: Node, how: str) -> None:
    """Failures 4."""
    await node.supervisor.start(order(3))
    ready = await node.until(ShardState.READY)
    await node.supervisor.close(stop_engines=False)
    path = node.config.state_dir / "ledger.json"
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if how == "torn" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    node.again()
    await node.supervisor.adopt()
    assert node.supervisor.state_lost is (how != "gone")
    (found,) = node.supervisor.reports()
    assert (found.shard, found.epoch, found.pids, found.endpoint) == ("uid/0", 3, ready.pids, ready.endpoint)
    node.reports.clear()
    await node.supervisor.apply(Desired(revision=1, shards=(order(3),)))
    again = await node.until(ShardState.READY)
    assert (again.pids, again.endpoint) == (ready.pids, ready.endpoint)
    assert Ledger(path).entries["uid/0"].pid == ready.pids[0]
    await node.supervisor.apply(Desired(revision=2))
    await node.until(ShardState.STOPPED)


async def test_engines_that_a_lost_ledger_left_and_nobody_wants_are_ended(node: Node) -> None:
    """Failures 4, F28."""
    await node.supervisor.start(order(3))
    pid = (await node.until(ShardState.READY)).pids[0]
    await node.supervisor.close(stop_engines=False)
    (node.config.state_dir / "ledger.json").unlink()
    node.again()
    await node.supervisor.adopt()
    await node.supervisor.apply(Desired(revision=1, shards=(order(4),)))
    await until(node, lambda report: report.epoch == 4 and report.state is ShardState.READY)
    assert processes.start_time(pid) is None


@pytest.mark.parametrize("told", ["a stop", "the whole desired state"])
async def test_what_a_lost_ledger_left_is_told_as_ended_when_it_has_ended(node: Node, told: str) -> None:
    """Said sooner, its replica would start on another node beside it."""
    await node.supervisor.start(order(3, extra_args=["--ignore-sigterm"]))
    pid = (await node.until(ShardState.READY)).pids[0]
    await node.supervisor.close(stop_engines=False)
    (node.config.state_dir / "ledger.json").unlink()
    node.again()
    await node.supervisor.adopt()
    node.reports.clear()
    if told == "a stop":
        stop = node.supervisor.stop("uid/0", 3, grace_seconds=0, reason="test")
    else:
        stop = node.supervisor.apply(Desired(revision=1))
    ending = asyncio.create_task(stop)
    late = asyncio.create_task(node.supervisor.stop("uid/0", 3, grace_seconds=0, reason="again"))
    while processes.start_time(pid) is not None:
        shown = [report.state for report in (*node.supervisor.reports(), *node.reports)]
        assert shown or processes.start_time(pid) is None
        assert ShardState.STOPPED not in shown or processes.start_time(pid) is None
        await asyncio.sleep(0.01)
    await asyncio.gather(ending, late)
    assert (await node.until(ShardState.STOPPED)).epoch == 3
    assert node.supervisor.reports() == ()


def test_a_ledger_changed_at_any_byte_is_lost_or_right(tmp_path: Path) -> None:
    """Failures 4."""
    from agent_client.ledger import Entry

    path = tmp_path / "ledger.json"
    Ledger(path).record(Entry(shard="s/0", epoch=3, boot_id="b", port=1, pid=os.getpid()))
    whole = path.read_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        ledger = Ledger(path)
        assert ledger.lost
        assert not ledger.entries


async def test_after_a_reboot_all_old_engines_are_known_to_be_dead(node: Node) -> None:
    """Failures 5."""
    await node.supervisor.start(order())
    pid = (await node.until(ShardState.READY)).pids[0]
    await node.supervisor.close(stop_engines=False)
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    ledger = Ledger(node.config.state_dir / "ledger.json")
    entry = ledger.entries["uid/0"]
    entry.boot_id, entry.pid = "an earlier boot", stranger.pid
    entry.start_time = processes.start_time(stranger.pid) or 0  # even so: it can't be the same process
    ledger.record(entry)
    os.kill(pid, signal.SIGKILL)
    node.again()
    node.reports.clear()
    async with asyncio.timeout(2):
        await node.supervisor.adopt()
        failed = await node.until(ShardState.FAILED)
    assert failed.code == FailureCode.LOST_TRACK
    assert stranger.returncode is None
    stranger.kill()
    await stranger.wait()
