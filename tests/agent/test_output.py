"""An engine's output stays bounded, is never a reason for the engine to wait, and tells how far it is."""

import asyncio
import dataclasses
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_client import config
from agent_client.engines.phases import PHASES, farthest, read_phase
from agent_client.profile import EngineKind
from agent_client.protocol.codec import encode
from agent_client.protocol.messages import MAX_FRAME_BYTES, ShardStatus
from agent_client.protocol.states import ShardState
from agent_client.supervisor import output
from agent_client.supervisor.evidence import read_head, read_output
from tests.agent.test_agent import Node, order

#: Writes at a rate, binary and without a newline, and keeps the longest time that one write took.
FLOOD = """
import json, os, sys, time
rate, seconds = {rate}, {seconds}
os.write(1, b"vLLM 0.32.0 begins\\n")
block = bytes(range(11, 256)) * 256
begun, sent, longest = time.monotonic(), 0, 0.0
while (now := time.monotonic()) - begun < seconds:
    if sent > (now - begun) * rate:
        time.sleep(0.001)
        continue
    sent += os.write(1, block)
    longest = max(longest, time.monotonic() - now)
open({told!r} + ".new", "w").write(json.dumps([sent, longest]))
os.rename({told!r} + ".new", {told!r})
os.write(1, b"\\nthe last words\\n")
sys.exit(3)
"""


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(2, id="2 s"),
        pytest.param(30, id="30 s", marks=[pytest.mark.heavy, pytest.mark.timeout(120)]),
    ],
)
async def test_a_gigabyte_a_minute_costs_neither_memory_nor_disk_nor_the_engine(tmp_path: Path, seconds: int) -> None:
    """Failures 15."""
    node = Node(tmp_path)
    told = tmp_path / "told"
    script = tmp_path / "engine.py"
    script.write_text(FLOOD.format(rate=2**30 // 60, seconds=seconds, told=str(told)))
    engines = {EngineKind.VLLM: config.EnginePolicy(command=(sys.executable, str(script)))}
    policy = dataclasses.replace(node.config.policy, engines=engines)
    longest = 8 * 2**20
    node.config = dataclasses.replace(node.config, policy=policy, log_bytes=longest)
    node.again()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu = time.process_time()
    await node.supervisor.start(order(engine="vllm", model="org/m"))
    await node.until(ShardState.LOADING)
    most = 0
    while not told.exists():
        await asyncio.sleep(0.05)
        most = max(most, on_disk(tmp_path / "logs"))
    cpu = (time.process_time() - cpu) / seconds
    failed = await node.until(ShardState.FAILED)
    sent, waited = json.loads(told.read_text())
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"{sent / 2**20:.0f} MiB: {most / 2**20:.0f} MiB on disk, RSS +{grown / 2**20:.1f} MiB, CPU {cpu:.0%}, "
          f"longest write {waited * 1000:.0f} ms")  # fmt: skip
    assert sent > 0.8 * seconds * 2**30 / 60
    assert most < 4 * longest  # it is looked at twice a second
    assert grown < 20 * 2**20
    assert waited < 2.0
    assert failed.record
    assert failed.record["head"][0] == "vLLM 0.32.0 begins"
    assert failed.tail[-1] == "the last words"
    assert len(encode(ShardStatus(report=failed), seq=1)) < MAX_FRAME_BYTES / 16
    assert all(len(line) <= 16_384 for line in failed.tail)
    await node.supervisor.close(stop_engines=True)


def test_the_middle_is_punched_out_and_beginning_and_end_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\n" + b"x" * 3_000_000 + b"\nlast\n")
    assert output.bound(path, 500_000)
    assert path.stat().st_size == 3_000_012
    assert on_disk(tmp_path) < 600_000
    assert read_head(path)[0] == "first"
    assert read_output(path, most_bytes=1_000_000)[-1] == "last"
    assert not output.bound(path, 500_000)


def test_where_holes_cannot_be_made_the_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoHoles:
        @staticmethod
        def fallocate(*_: Any) -> int:
            import ctypes

            ctypes.set_errno(95)  # EOPNOTSUPP
            return -1

    monkeypatch.setattr(output, "_libc", NoHoles)
    path = tmp_path / "a.log"
    with path.open("ab") as engine:
        engine.write(b"x" * 3_000_000 + b"\nlast\n")
        engine.flush()
        assert output.bound(path, 500_000)
        engine.write(b"more\n")
    assert on_disk(tmp_path) < 600_000
    assert read_output(path, most_bytes=10_000)[-2:] == ["last", "more"]


def test_a_follower_gives_whole_lines_once_and_passes_over_a_flood(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    follower = output.Follower(path)
    assert follower.lines() == []
    path.write_bytes(b"one\ntw")
    assert follower.lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\r10%|#\r20%|##")
    assert follower.lines() == ["two", "10%|#"]
    with path.open("ab") as file:
        file.write(b"y" * (output.READ_MOST + 500) + b"\nend\n")
    lines = follower.lines()
    assert lines[-1] == "end"
    assert max(map(len, lines)) <= 16_384
    assert follower.dropped_bytes > 0
    os.truncate(path, 0)
    path.write_bytes(b"anew\n")
    assert follower.lines() == ["anew"]


# --- phases ----------------------------------------------------------------------------------------------------------

LINES = {
    "(EngineCore pid=9) INFO 12-01 06:13:41 [gpu_model_runner.py:1] Starting to load model /m...": ("weights", None),
    "(Worker_TP0 pid=9) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03]": ("weights", 0.25),
    "(Worker_TP0 pid=9) INFO 12-01 06:13:41 [default_loader.py:1] Loading weights took 3.20 seconds": ("weights", 1.0),
    "(EngineCore pid=9) INFO 12-01 06:13:41 [backends.py:5] Dynamo bytecode transform time: 4.2 s": ("compiling", None),
    "(EngineCore pid=9) INFO 12-01 06:13:41 [kv_cache_utils.py:1] GPU KV cache size: 1,024 tokens": ("cache", None),
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|####      | 2/5": ("capturing", 0.4),
    "INFO 12-01 06:13:41 [core.py:1] init engine (profile, create kv cache, warmup model) took 9 s": ("warm-up", None),
    "(Worker pid=9) INFO 12-01 06:13:41 [cpu_model_runner.py:87] Warming up model for the compilation...": (
        "warm-up",
        None,
    ),
    "common_init_from_params: warming up the model with an empty run - please wait ...": ("warm-up", None),
    "[2025-07-02 07:41:58 TP0] Load weight begin. avail mem=78.5 GB": ("weights", None),
    "[2025-07-02 07:41:58 TP0] Capture cuda graph begin. This can take up to several minutes.": ("capturing", None),
    "[2025-07-02 07:42:58] The server is fired up and ready to roll!": ("serving", None),
    "load_tensors: loading model tensors, this can take a while... (mmap = true)": ("weights", None),
    "main: server is listening on http://127.0.0.1:20000 - starting the main loop": ("serving", None),
}


@pytest.mark.parametrize("line", LINES)
def test_the_engines_own_lines_tell_the_phase(line: str) -> None:
    found = read_phase(line)
    assert found is not None
    assert (found.name, found.share) == LINES[line]
    assert found.place == PHASES.index(found.name)


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=9) WARNING 12-02 18:38:29 [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs"
        ", and JIT kernel warmup. This is equivalent to setting -cc.mode=none",
        "(EngineCore pid=9) INFO 12-02 18:42:01 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='/m', kernel_config=KernelConfig(enable_jit_warmup=False)",
        "(Worker pid=9) WARNING 12-02 18:42:01 [warmup.py:125] Skipping V2 mixed prefill+decode warmup because only 3",
        "(APIServer pid=9) INFO 12-02 18:42:01 [base.py:280] Chat template warmup completed in 0.003s",
    ],
)
def test_a_line_that_only_names_a_phase_is_not_taken_for_it(line: str) -> None:
    assert read_phase(line) is None


def test_the_farthest_point_counts_not_the_last() -> None:
    found = farthest([*[*LINES][:4], [*LINES][1], "Retrying the connection", ""])
    assert found is not None
    assert found.name == "compiling"
    assert farthest(["Waiting for 1 local core engine proc(s) to start"]) is None
