"""vLLM itself, on the CPU: what its deaths, its drains and a replica over two nodes look like from outside.

LLMGW_TEST_VLLM names its program. A vLLM that was set to start with no card serves a model of 1.5 MB here.
"""

import contextlib
import hashlib
import json
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_client.engines.phases import PHASES
from agent_client.supervisor.processes import STATE_VARIABLE, shared_memory
from tests.e2e.harness import PATIENCE, House, content, wait_for
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


class Shown:
    """What the API showed of a start."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.shares: set[float] = set()

    def look(self, house: House) -> bool:
        found = house.replica()
        for shard in found.get("shards", ()):
            if shard["phase"] and shard["phase"] not in self.phases:
                self.phases.append(shard["phase"])
            if shard["progress"] is not None:
                self.shares.add(shard["progress"])
        return bool(found["state"] == "ready")


@pytest.fixture
def served(house: House, model: Path) -> House:
    agent(house, model, "node-a")
    house.api("models/", {"name": "tiny", "profile": profile(model)})
    shown = Shown()
    wait_for(lambda: shown.look(house), "vLLM", START_SECONDS)
    assert shown.phases, "no phase of the load was shown"
    assert shown.phases == sorted(shown.phases, key=PHASES.index)
    assert "weights" not in shown.phases or shown.shares == {1.0}  # they are so small that they come at once
    log = (house.folder / "node-a.log").read_text()
    assert sum(f"phase={phase}" in log for phase in PHASES) >= 2  # of two that follow close only the later is told
    wait_for(lambda: answer(house), "an answer through the router", 60)
    return house


def answer(house: House) -> str:
    """Of a few tokens: a busy machine makes one or two a second."""
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    with house.request(house.router_port, "/v1/chat/completions", body, timeout=120) as found:
        return str(json.loads(found.read())["choices"][0]["message"]["content"])


def story(house: House) -> Any:
    """Opens a stream of so many tokens that it does not end by itself first; iterate over its lines."""
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "tell me a long story"}]}
    body |= {"max_tokens": 300, "ignore_eos": True}
    return house.request(house.router_port, "/v1/chat/completions", body, timeout=240)


def gone(house: House, attempt: int, seconds: float = 60) -> dict[str, Any]:
    """The replica once that attempt has failed."""

    def look() -> Any:
        found = house.replica()
        return found if (found["latest_failure"] or {}).get("attempt") == attempt else None

    return dict(wait_for(look, f"attempt {attempt} to have failed", seconds))


def usage(house: House, **fields: Any) -> int:
    words = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    script = f"from routing.models import Usage; print(Usage.objects.filter({words}).count())"
    return int(house.manage("shell", "-v0", "-c", script))


def metrics(house: House) -> str:
    """Of the engine itself: vLLM shows them to everybody on its address."""
    with urllib.request.urlopen(f"{house.replica()['endpoint']}/metrics", timeout=30) as page:
        return str(page.read().decode())


def test_its_deaths_are_seen_and_leave_nothing_behind(served: House) -> None:
    # SIGTERM from outside: it cuts the stream, says an error and [DONE], and ends with exit code 0. Now and then it
    # ends its core before it has told the stream: then it listens no more and waits for ever, and hangs.
    first = served.replica()
    lines = iter(story(served))
    next(line for line in lines if content(line))
    os.kill(first["shards"][0]["pids"][0], signal.SIGTERM)
    rest = b"".join(lines)
    assert b'"error"' in rest, rest[-500:]
    wait_for(lambda: usage(served, completed=False) == 1, "the cut stream to be counted as cut")
    failure = gone(served, first["attempt"])["latest_failure"]
    assert failure["code"] in ("hung", "port_closed") or (failure["code"], failure["exit_code"]) == ("terminated", 0)

    # The engine's core dies: its API process ends by itself, with exit code 0, which is still a failure.
    second = ready(served, first["attempt"] + 1)
    os.kill(engine_core(served), signal.SIGKILL)
    failure = gone(served, second["attempt"])["latest_failure"]
    assert (failure["code"], failure["exit_code"]) == ("engine-process-died", 0)
    third = ready(served, second["attempt"] + 1)
    wait_for(lambda: answer(served), "an answer", 60)

    # Its API process dies: its children and what they had in shared memory go before the next attempt is started.
    api = third["shards"][0]["pids"][0]
    old = set(processes(served))
    segments = shared_memory(old)
    assert len(old) >= 2
    assert segments
    os.kill(api, signal.SIGKILL)
    assert gone(served, third["attempt"])["latest_failure"]["exit_signal"] == 9
    wait_for(lambda: served.replica()["shards"][-1]["pids"], "the next attempt's process", 60)
    assert not old & set(processes(served))
    assert [path for path in segments if Path(path).exists()] == []


def test_a_frozen_core_is_unrouted_and_replaced_though_its_health_page_says_200(served: House) -> None:
    first = served.replica()
    os.kill(engine_core(served), signal.SIGSTOP)
    began = time.monotonic()
    with urllib.request.urlopen(f"{first['endpoint']}/health", timeout=10) as page:
        assert page.status == 200
    wait_for(lambda: served.replica()["state"] != "ready", "it to be unrouted", 75)
    unrouted = time.monotonic() - began
    failure = gone(served, first["attempt"], 120)["latest_failure"]
    assert failure["code"] == "hung"
    assert unrouted < 75 * PATIENCE
    wait_for(lambda: served.replica()["attempt"] > first["attempt"], "the next attempt", 60)


def test_streams_survive_an_agents_death_and_a_drain_and_those_who_leave_are_noticed(served: House) -> None:
    before = served.replica()
    leaving = story(served)
    next(line for line in leaving if content(line))
    leaving.close()
    wait_for(lambda: "vllm:num_requests_running{" in (page := metrics(served)) and idle(page), "it to be idle", 10)
    wait_for(lambda: usage(served, completed=False) == 1, "what left to be counted as cut")

    lines = iter(story(served))
    next(line for line in lines if content(line))
    served.kill("node-a")
    served.agent("node-a", LLMGW_AGENT_CONFIG=str(served.folder / "node-a.yaml"))
    wait_for(lambda: served.node()["status"] == "ready" and served.node()["connected"], "the agent")
    assert_whole(list(lines))
    after = served.replica()
    assert (after["attempt"], after["shards"][0]["pids"]) == (before["attempt"], before["shards"][0]["pids"])

    lines = iter(story(served))
    next(line for line in lines if content(line))
    served.api(f"replicas/{served.replica()['uid']}/drain/", {"deadline_seconds": 300}, "POST")
    assert_whole(list(lines))  # TERM would have cut it: the drain waited
    wait_for(lambda: served.replica()["state"] == "stopped", "the drain to end", 120)
    wait_for(lambda: not processes(served), "its processes to be gone", 30)
    wait_for(lambda: usage(served, completed=True, completion_tokens__gt=4) == 2, "both streams counted as whole")
    assert usage(served, completed=False) == 1


def assert_whole(lines: list[bytes]) -> None:
    assert any(line.strip() == b"data: [DONE]" for line in lines)
    assert not any(b'"error"' in line for line in lines)
    assert any(b'"finish_reason":"length"' in line or b'"finish_reason":"stop"' in line for line in lines)


def idle(page: str) -> bool:
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
    return all(float(line.rpartition(" ")[2]) == 0 for line in lines)


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
    wait_for(lambda: answer(house), "an answer of both", 180)

    victim = next(shard for shard in first["shards"] if shard["rank"] == 1)
    began = time.monotonic()
    os.kill(victim["pids"][0], signal.SIGKILL)
    wait_for(lambda: house.replica()["state"] != "ready", "the rank's death to be seen", 15)
    assert time.monotonic() - began < 15
    second = ready(house, first["attempt"] + 1)
    assert {shard["epoch"] for shard in second["shards"]} == {second["attempt"]}
    wait_for(lambda: answer(house), "an answer of the next attempt", 180)


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
