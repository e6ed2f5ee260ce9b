"""vLLM itself, on the CPU: what its deaths, its drains and a replica over two nodes look like from outside.

LLMGW_TEST_VLLM names its program. A vLLM that was set to start with no card serves a model of 1.5 MB here.
"""

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_client.supervisor.processes import STATE_VARIABLE
from tests.e2e.harness import House, content, wait_for
from tests.support import tiny_hf

VLLM = os.environ.get("LLMGW_TEST_VLLM")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(VLLM is None, reason="LLMGW_TEST_VLLM does not name a vllm program"),
]
ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
START_SECONDS = 300


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    tiny_hf.write(folder)
    return folder


def agent(house: House, model: Path, name: str, **extra: Any) -> None:
    policy = {
        "engines": {"vllm": {"command": [str(VLLM), "serve"], "env": ENV}},
        "model_roots": [str(model.parent)],
        "extra_args": ["--enforce-eager"],
    }
    file = house.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"policy": policy, **extra}))
    house.agent(name, LLMGW_AGENT_CONFIG=str(file))


def profile(model: Path, **fields: Any) -> dict[str, Any]:
    return {
        "engine": "vllm",
        "model": str(model),
        "gpus": 0,
        "max_model_len": 1024,
        "extra_args": ["--enforce-eager"],
        **fields,
    }


def ready(house: House, attempt: int = 1) -> dict[str, Any]:
    def look() -> Any:
        found = house.replica()
        return found if found["state"] == "ready" and found["attempt"] >= attempt else None

    return dict(wait_for(look, f"attempt {attempt} to be ready", START_SECONDS))


def processes(house: House) -> dict[int, str]:
    """Every process that carries the mark of one of the house's agents in its environment, with its title."""
    marks = [hashlib.sha256(str(house.folder / name).encode()).hexdigest()[:24] for name in ("node-a", "node-b")]
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (folder / "environ").read_bytes()
            if any(f"{STATE_VARIABLE}={mark}".encode() in environ for mark in marks):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def engine_core(house: House) -> int:
    """Its title, where it has set one, or its own command line says so; else the youngest of its processes."""
    found = processes(house)
    named = [pid for pid, title in found.items() if "EngineCore" in title]
    return named[0] if named else max(found)


@pytest.fixture
def served(house: House, model: Path) -> House:
    agent(house, model, "node-a")
    house.api("models/", {"name": "tiny", "profile": profile(model)})
    phases = set()

    def look() -> bool:
        found = house.replica()
        phases.update(shard["phase"] for shard in found.get("shards", ()))
        return found["state"] == "ready"

    wait_for(look, "vLLM", START_SECONDS)
    assert phases - {""}, "no phase of the load was shown"
    wait_for(lambda: house.chat("tiny"), "an answer through the router")
    return house


def test_its_deaths_are_seen_and_leave_nothing_behind(served: House) -> None:
    # The engine's core dies: its API process ends by itself, with exit code 0, which is still a failure.
    first = served.replica()
    os.kill(engine_core(served), signal.SIGKILL)
    wait_for(lambda: served.replica()["state"] != "ready", "the death to be seen", 30)
    second = ready(served, first["attempt"] + 1)
    assert second["latest_failure"]["attempt"] == first["attempt"]
    assert second["latest_failure"]["exit_code"] == 0
    wait_for(lambda: served.chat("tiny"), "an answer")

    # Its API process dies: its children go before the next attempt is started.
    api = second["shards"][0]["pids"][0]
    old = set(processes(served))
    assert len(old) >= 2
    os.kill(api, signal.SIGKILL)
    third = ready(served, second["attempt"] + 1)
    assert not old & set(processes(served))
    assert third["latest_failure"]["exit_signal"] == 9
    wait_for(lambda: served.chat("tiny"), "an answer")


def test_a_drain_lets_a_stream_end_whole_and_an_agents_death_cuts_none(served: House) -> None:
    attempt = served.replica()["attempt"]
    stream = served.stream("tiny", "tell me a long story")
    lines = iter(stream)
    next(line for line in lines if content(line))
    served.kill("node-a")
    served.agent("node-a", LLMGW_AGENT_CONFIG=str(served.folder / "node-a.yaml"))
    wait_for(lambda: served.node()["status"] == "ready" and served.node()["connected"], "the agent")
    rest = list(lines)
    assert any(line.strip() == b"data: [DONE]" for line in rest)
    assert served.replica()["attempt"] == attempt

    stream = served.stream("tiny", "tell me another long story")
    lines = iter(stream)
    next(line for line in lines if content(line))
    served.api(f"replicas/{served.replica()['uid']}/drain/", {"deadline_seconds": 300}, "POST")
    rest = list(lines)
    assert any(line.strip() == b"data: [DONE]" for line in rest)
    wait_for(lambda: served.replica()["state"] == "stopped", "the drain to end", 120)
    wait_for(lambda: not processes(served), "its processes to be gone", 30)


def test_one_replica_over_two_nodes_answers_and_comes_back_whole(house: House, model: Path) -> None:
    tree = house.folder / "sysfs"
    one_port(tree)
    for name in ("node-a", "node-b"):
        agent(house, model, name, ib_root=str(tree), fabrics=[{"name": "ib-test", "hcas": ["mlx5_0"]}])
    wait_for(lambda: house.node("node-b")["status"] == "ready", "both nodes")
    meet = {"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo"}
    wish = profile(model, nodes=2, tensor_parallel=2, nvlink="off", env=meet)
    house.api("models/", {"name": "tiny", "profile": wish})
    first = ready(house)
    assert [shard["rank"] for shard in first["shards"]] == [0, 1]
    assert {shard["node"] for shard in first["shards"]} == {"node-a", "node-b"}
    wait_for(lambda: house.chat("tiny"), "an answer of both")

    victim = next(shard for shard in first["shards"] if shard["rank"] == 1)
    began = time.monotonic()
    os.kill(victim["pids"][0], signal.SIGKILL)
    wait_for(lambda: house.replica()["state"] != "ready", "the rank's death to be seen", 15)
    assert time.monotonic() - began < 15
    second = ready(house, first["attempt"] + 1)
    assert {shard["epoch"] for shard in second["shards"]} == {second["attempt"]}
    wait_for(lambda: house.chat("tiny"), "an answer of the next attempt")


def one_port(root: Path) -> None:
    """One active InfiniBand port, as sysfs shows it."""
    port = root / "mlx5_0" / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    for name, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "200 Gb/sec (4X HDR)",
        "link_layer": "InfiniBand",
        "lid": "0x1",
        "sm_lid": "0x1",
        "gids/0": "fe80:0000:0000:0000:b859:9f03:00c8:3a1c",
    }.items():
        (port / name).write_text(text + "\n")
    (root / "mlx5_0" / "node_guid").write_text("b859:9f03:00c8:3a1c\n")
