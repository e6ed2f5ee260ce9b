"""The agent's parts: adapters against vLLM's own option list, ledger, policy, supervision with real processes."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client import config, preflight, probes
from agent_client.engines import LaunchSpec, PlanError, Probed, Readiness, plan
from agent_client.installed import Installed
from agent_client.ledger import Entry, Ledger
from agent_client.machine import Limits
from agent_client.profile import ProfileError, Refusal, parse_profile
from agent_client.protocol.messages import DesiredShard, ShardReport, ShardSpec
from agent_client.protocol.states import FailureCode, ShardState
from agent_client.supervisor import Figures, NodeTools, OrderRefused, Supervisor, processes
from tests.e2e.harness import ROOT, STANDIN
from tests.support.ports import free_ports

OPTIONS = {
    name: option for option in json.loads((STANDIN / "options.json").read_text())["options"] for name in option["names"]
}


def launch_spec(**fields: Any) -> LaunchSpec:
    profile = parse_profile(fields.pop("profile"))
    values: dict[str, Any] = {"replica": "m/1", "served_names": ("m", "default"), "port": 20000, "engine_key": "CANARY"}
    return LaunchSpec(profile=profile, **(values | fields))


@given(
    st.fixed_dictionaries(
        {"engine": st.just("vllm"), "model": st.just("org/m")},
        optional={
            "tensor_parallel": st.integers(1, 16),
            "pipeline_parallel": st.integers(1, 4),
            "data_parallel": st.integers(1, 4),
            "expert_parallel": st.booleans(),
            "max_model_len": st.integers(1, 10**6),
            "gpu_memory_utilization": st.floats(0.01, 1),
            "dtype": st.sampled_from(["auto", "bfloat16"]),
            "quantization": st.sampled_from(["fp8", "awq"]),
            "kv_cache_dtype": st.just("fp8"),
        },
    )
)
def test_every_vllm_argument_is_one_that_vllm_knows(profile: dict[str, Any]) -> None:
    argv = plan(launch_spec(profile=profile, gpus=("GPU-1",))).argv
    flags = [word for word in argv if word.startswith("--")]
    assert set(flags) <= set(OPTIONS)
    assert "CANARY" not in " ".join(argv)


@pytest.mark.parametrize("arg", ["--port", "--tensor-parallel", "--tensor_parallel_size=2", "--api-key=x", "-tp"])
def test_owned_flags_are_refused_by_what_they_reach(arg: str) -> None:
    with pytest.raises(PlanError, match="llmgw sets itself"):
        plan(launch_spec(profile={"engine": "vllm", "model": "m", "extra_args": [arg]}))


def test_cards_go_by_uuid_and_keys_by_environment() -> None:
    launch = plan(launch_spec(profile={"engine": "vllm", "model": "m", "tensor_parallel": 2}, gpus=("GPU-b", "GPU-a")))
    env = {variable.name: variable for variable in launch.env}
    assert env["CUDA_VISIBLE_DEVICES"].value == "GPU-b,GPU-a"
    assert env["CUDA_DEVICE_ORDER"].value == "PCI_BUS_ID"
    assert env["VLLM_API_KEY"].secret
    assert "CANARY" not in env["VLLM_API_KEY"].shown


def test_a_secret_that_the_node_lacks_is_named() -> None:
    profile = {"engine": "echo", "gpus": 0, "env": {"HF_TOKEN": {"secret": "hf-token"}}}
    with pytest.raises(PlanError, match="no secret 'hf-token'"):
        plan(launch_spec(profile=profile))
    env = {v.name: v for v in plan(launch_spec(profile=profile, secrets={"hf-token": "hf_CANARY"})).env}
    assert (env["HF_TOKEN"].value, env["HF_TOKEN"].shown) == ("hf_CANARY", "(secret)")


def test_a_profile_round_trips_and_tells_all_problems() -> None:
    data = {"engine": "vllm", "model": "m", "tensor_parallel": 2, "env": {"A": "1"}, "gpu_class": ["x"]}
    assert parse_profile(data).to_dict() == data
    with pytest.raises(ProfileError) as error:
        parse_profile({"engine": "vllm", "gpu_memory_utilization": 1.7, "nodes": 0, "swap_space": 4})
    assert len(error.value.problems) == 4


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["serve", "m", "--swap-space", "4"], 2), (["serve", "m", "n"], 2)]
)
def test_the_stand_in_refuses_what_vllm_refuses(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, str(STANDIN / "vllm"), *arguments], capture_output=True, text=True)
    assert done.returncode == code
    assert "error:" in done.stderr


def test_a_torn_ledger_is_lost_at_every_byte_and_never_wrong(tmp_path: Path) -> None:
    """Failures 4."""
    path = tmp_path / "ledger.json"
    Ledger(path).record(Entry(shard="s/0", epoch=3, boot_id="b", port=1, pid=os.getpid()))
    whole = path.read_bytes()
    assert Ledger(path).highest_epoch("s/0") == 3
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        ledger = Ledger(path)
        assert ledger.lost
        assert not ledger.entries


def test_the_agent_runs_without_django() -> None:
    code = (
        "import sys, agent_client.app, agent_client.__main__\n"
        "bad = {'django', 'rest_framework', 'channels', 'celery', 'redis', 'fleet', 'routing'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_configuration_errors_name_the_key_and_a_good_value(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    for text, message in {
        "servr: x": "did you mean `server`",
        "server: ws://10.0.0.1:8000": "plaintext is for loopback",
        "policy: {ports: abc}": "20000-20999",
        "fabrics: [x]": "ib-east",
    }.items():
        file.write_text(text)
        with pytest.raises(config.ConfigError, match=message):
            config.load(flags={}, environ={}, path=file)
    loaded = config.load(flags={"node_id": "a"}, environ={"LLMGW_AGENT_NODE_ID": "b"}, path=None)
    assert loaded.node_id == "a"


# --- supervision, with real processes -------------------------------------------------------------------------------


class Node:
    """A supervisor in a folder; `again` is a restarted agent's."""

    def __init__(self, folder: Path, ports: int = 3) -> None:
        self.config = config.AgentConfig(
            server="ws://127.0.0.1:1",
            node_id="n",
            mgmt_addr="127.0.0.1",
            state_dir=folder,
            policy=config.Policy(ports=free_ports(ports)),
        )
        self.reports: list[ShardReport] = []
        self.tools: dict[str, Any] = {}
        self.limits = Limits()
        self.again()

    def again(self) -> None:
        async def probe(endpoint: str, readiness: Any, name: str, key: str | None) -> Probed:
            return await asyncio.to_thread(probes.ready, endpoint, readiness, name=name, key=key)

        async def load(endpoint: str, key: str | None) -> Figures:
            found = await asyncio.to_thread(probes.load, endpoint, key=key)
            return Figures(running=found.running, waiting=found.waiting, moving=found.moving, refused=found.refused)

        def check(profile: Any, spec: Any) -> Refusal | None:
            return preflight.check(self.config, profile, spec, {}, ()).refusal

        self.supervisor = Supervisor(
            config=self.config,
            ledger=Ledger(self.config.state_dir / "ledger.json"),
            boot_id="boot",
            tools=NodeTools(
                **{
                    "preflight": check,
                    "command": lambda profile: preflight.command_for(self.config, profile.engine) or (),
                    "free_ports": preflight.Ports(self.config.policy.ports, "127.0.0.1").take,
                    "probe": probe,
                    "load": load,
                    **self.tools,
                }
            ),
            on_report=self.reports.append,
            limits=self.limits,
        )

    async def until(self, state: ShardState) -> ShardReport:
        async with asyncio.timeout(20):
            while not self.reports or self.reports[-1].state is not state:
                await asyncio.sleep(0.02)
        return self.reports[-1]


def order(epoch: int = 1, **profile: Any) -> DesiredShard:
    data = {"engine": "echo", "gpus": 0, "stop_grace_seconds": 1, **profile}
    spec = ShardSpec(replica="m/1", served_names=("m",), profile=data, engine_key="CANARY")
    return DesiredShard(shard="uid/0", epoch=epoch, spec=spec)


@pytest.fixture
async def node(tmp_path: Path) -> Any:
    node = Node(tmp_path)
    yield node
    await node.supervisor.close(stop_engines=True)


async def test_an_engine_starts_is_adopted_and_stops(node: Node) -> None:
    await node.supervisor.start(order())
    ready = await node.until(ShardState.READY)
    (pid,) = ready.pids
    assert b"CANARY" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    await node.supervisor.close(stop_engines=False)
    node.again()
    await node.supervisor.adopt()
    (report,) = node.supervisor.reports()
    assert (report.state, report.pids, report.endpoint) == (ShardState.READY, (pid,), ready.endpoint)
    await node.supervisor.start(order())  # the same order again changes nothing
    assert node.supervisor.reports()[0].pids == (pid,)
    await node.supervisor.stop("uid/0", 1, grace_seconds=2, reason="test")
    await node.until(ShardState.STOPPED)
    assert processes.start_time(pid) is None


async def test_a_crash_is_told_with_code_and_tail(node: Node) -> None:
    """F25."""
    await node.supervisor.start(order(extra_args=["--exit-code", "3", "--exit-after", "0.5"]))
    report = await node.until(ShardState.FAILED)
    assert (report.code, report.exit_code) == (FailureCode.EXITED, 3)
    assert "exited with code 3" in report.detail
    assert any("echo engine listening" in line for line in report.tail)


async def test_a_stop_ends_what_ignores_it_and_what_it_left_behind(node: Node) -> None:
    """F27."""
    await node.supervisor.start(order(extra_args=["--ignore-sigterm", "--spawn-child"]))
    await node.until(ShardState.READY)
    assert len(node.supervisor.owned_pids()) == 2
    await node.supervisor.stop("uid/0", 1, grace_seconds=0.2, reason="test")
    await node.until(ShardState.STOPPED)
    assert node.supervisor.owned_pids() == set()


async def test_a_start_that_never_gets_ready_has_a_deadline(node: Node) -> None:
    """F25, failures 36."""
    await node.supervisor.start(order(extra_args=["--load-seconds", "60"], start_timeout_seconds=1))
    report = await node.until(ShardState.FAILED)
    assert report.code == FailureCode.START_TIMEOUT


async def test_older_orders_are_refused_and_newer_ones_replace(node: Node) -> None:
    await node.supervisor.start(order(5))
    first = await node.until(ShardState.READY)
    with pytest.raises(OrderRefused) as refused:
        await node.supervisor.start(order(4))
    assert refused.value.code is FailureCode.STALE_ORDER
    await node.supervisor.stop("uid/0", 4, grace_seconds=0, reason="late")  # a stop of an older engine
    assert node.supervisor.reports()[0].state is ShardState.READY
    await node.supervisor.start(order(6))
    async with asyncio.timeout(20):
        while (last := node.reports[-1]).epoch != 6 or last.state is not ShardState.READY:
            await asyncio.sleep(0.02)
    assert last.pids != first.pids
    assert processes.start_time(first.pids[0]) is None


async def test_a_refused_replacement_leaves_the_older_engine_running(node: Node) -> None:
    async def foresee(profile: Any, spec: ShardSpec, replaces: str) -> Refusal | None:
        assert replaces == "uid/0"
        known = Installed(run=lambda argv, seconds: None, folder=None)
        return preflight.check(node.config, profile, spec, {}, (), installed=known).refusal

    node.tools["foresee"] = foresee
    node.again()
    await node.supervisor.start(order(5))
    first = await node.until(ShardState.READY)
    await node.supervisor.start(order(6, extra_args=["--no-such-flag"]))
    refused = await node.until(ShardState.FAILED)
    assert (refused.epoch, refused.code) == (6, "flag_unknown")
    assert "--no-such-flag" in refused.detail
    (left,) = node.supervisor.reports()
    assert (left.epoch, left.state, left.pids) == (5, ShardState.READY, first.pids)
    served = await asyncio.to_thread(probes.ready, first.endpoint or "", Readiness(), name="m", key="CANARY")
    assert served.miss is None
    assert Ledger(node.config.state_dir / "ledger.json").highest_epoch("uid/0") == 6
    await node.supervisor.stop("uid/0", 5, grace_seconds=1, reason="the control plane's own word")
    assert (await node.until(ShardState.STOPPED)).epoch == 5


async def test_a_stop_ends_what_runs_while_its_replacement_is_still_checked(node: Node) -> None:
    checking = asyncio.Event()

    async def foresee(profile: Any, spec: ShardSpec, replaces: str) -> None:
        checking.set()
        await asyncio.sleep(60)

    node.tools["foresee"] = foresee
    node.again()
    await node.supervisor.start(order(5))
    await node.until(ShardState.READY)
    await node.supervisor.start(order(6))
    await checking.wait()
    await node.supervisor.stop("uid/0", 5, grace_seconds=1, reason="test")
    async with asyncio.timeout(20):
        while (last := node.reports[-1]).epoch != 6 or last.state is not ShardState.READY:
            await asyncio.sleep(0.02)
    stopped = [report.epoch for report in node.reports if report.state is ShardState.STOPPED]
    assert stopped == [5]


async def test_a_reused_pid_is_neither_adopted_nor_killed(node: Node) -> None:
    """Failures 3."""
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        ledger = Ledger(node.config.state_dir / "ledger.json")
        from agent_client.protocol.codec import plain_part

        spec = plain_part(order().spec)
        ledger.record(
            Entry(shard="uid/0", epoch=1, boot_id="boot", port=1, pid=stranger.pid, start_time=1, spec=spec, ready=True)
        )
        node.again()
        await node.supervisor.adopt()
        report = await node.until(ShardState.FAILED)
        assert report.code == FailureCode.LOST_TRACK
        assert stranger.returncode is None
    finally:
        stranger.send_signal(signal.SIGKILL)
        await stranger.wait()


async def test_engines_are_taken_back_from_a_state_folder_that_was_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    node = Node(before)
    await node.supervisor.start(order())
    (pid,) = (await node.until(ShardState.READY)).pids
    await node.supervisor.close(stop_engines=False)
    before.rename(after)
    node.config = dataclasses.replace(node.config, state_dir=after)
    node.again()
    await node.supervisor.adopt()
    try:
        (report,) = node.supervisor.reports()
        assert (report.state, report.pids) == (ShardState.READY, (pid,))
        await node.supervisor.start(order())
        assert [each.pids for each in node.supervisor.reports()] == [(pid,)]
    finally:
        await node.supervisor.close(stop_engines=True)
    assert processes.start_time(pid) is None


async def test_a_missing_model_is_refused_before_anything_starts(node: Node) -> None:
    await node.supervisor.start(order(model="/no/such/model"))
    report = await node.until(ShardState.FAILED)
    assert report.code == FailureCode.MODEL_MISSING
    assert "/no/such/model" in report.detail


def test_the_cards_are_looked_at_anew_just_before_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger that came after placement had chosen the card (70 GB of foreign use)."""
    from agent_client.app import Agent
    from agent_client.hardware import Inventory

    monkeypatch.setenv("PATH", f"{STANDIN}:{os.environ['PATH']}")
    agent = Agent(config.load(flags={"state_dir": str(tmp_path)}, environ={}, path=None))
    card = {"uuid": "GPU-1", "index": 1, "placeable": True, "memory_total_mib": 81559, "memory_used_mib": 4}
    looks = [Inventory(data={"gpus": [card]})]
    monkeypatch.setattr(agent._watch._discovery, "look", lambda: looks[-1])
    profile = {"engine": "vllm", "model": "org/m", "gpu_memory_utilization": 0.9}
    spec = ShardSpec(replica="m/1", served_names=("m",), profile=profile, gpus=("GPU-1",))
    assert agent._preflight(parse_profile(profile), spec) is None
    stranger = {"pid": 4242, "name": "python", "memory_mib": 70000, "foreign": True}
    looks.append(Inventory(data={"gpus": [{**card, "processes": [stranger], "memory_used_mib": 70004}]}))
    refusal = agent._preflight(parse_profile(profile), spec)
    assert refusal is not None
    assert (refusal.code, refusal.detail) == (
        "gpu_busy",
        "cannot start m/1: GPU 1 (GPU-1) is used by python (pid 4242)",
    )
    looks.append(Inventory(data={"gpus": [{**card, "memory_used_mib": 70004}]}))
    refusal = agent._preflight(parse_profile(profile), spec)
    assert refusal is not None
    assert (refusal.code, refusal.detail) == (
        "gpu_busy",
        "cannot start m/1: GPU 1 (GPU-1) has 11555 MiB free, 73403 MiB needed",
    )
