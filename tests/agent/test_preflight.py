"""What a node says before it starts anything: cards, adapters, places to meet, disk; ports that are given once."""

import dataclasses
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_client import config, preflight
from agent_client.hardware import Discovery, DiscoveryOptions
from agent_client.preflight import Ports, models
from agent_client.profile import EngineKind, parse_profile
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import NODE_LOCAL_FAILURES, FailureCode
from tests.support import tiny_hf
from tests.support.ports import free_port, free_ports

H100 = "h100-sxm-80gb"


def card(**fields: Any) -> dict[str, Any]:
    fixed = {"uuid": "GPU-1", "index": 1, "class": H100, "name": "NVIDIA H100", "placeable": True}
    return {**fixed, "memory_total_mib": 81_559, "memory_used_mib": 4, "compute_capability": "9.0", **fields}


def adapter(hca: str, state: str) -> dict[str, Any]:
    return {"hca": hca, "ports": [{"port": 1, "state": state}]}


class Machine:
    def __init__(self, folder: Path) -> None:
        engines = {EngineKind.VLLM: config.EnginePolicy(command=("/bin/false", "serve"))}
        self.config = config.AgentConfig(
            server="ws://127.0.0.1:1",
            node_id="n",
            mgmt_addr="127.0.0.1",
            state_dir=folder / "state",
            policy=config.Policy(engines=engines),
        )
        self.inventory: dict[str, Any] = {"gpus": [card()], "adapters": []}

    def check(self, *, spec: dict[str, Any] | None = None, **profile: Any) -> preflight.Checked:
        data = {"engine": "vllm", "model": "org/m", **profile}
        given = {"replica": "m/1", "served_names": ("m",), "profile": data, "gpus": ("GPU-1",), **(spec or {})}
        return preflight.check(self.config, parse_profile(data), ShardSpec(**given), self.inventory, (77,))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_stands_against_a_card_of_ours(machine: Machine) -> None:
    machine.inventory["gpus"] = [card(processes=[{"pid": 77, "name": "vllm", "foreign": True}])]
    assert machine.check().problems == ()
    assert machine.check().refusal is None


@pytest.mark.parametrize(
    ("fields", "profile", "code", "text"),
    [
        ({"uuid": "GPU-9"}, {}, "gpu_missing", "GPU GPU-1 is not in this node's inventory"),
        ({"class": "l4-24gb"}, {"gpu_class": H100}, "gpu_missing", f"is a l4-24gb, {H100} is needed"),
        ({"placeable": False, "problems": [{"text": "Xid 79"}]}, {}, "gpu_missing", "can't be used: Xid 79"),
        ({"processes": [{"pid": 5, "name": "jupyter"}]}, {}, "gpu_busy", "is used by jupyter (pid 5)"),
        ({"memory_used_mib": 50_000}, {"gpu_memory_utilization": 0.9}, "gpu_busy", "31559 MiB free, 73403 MiB needed"),
        ({"memory_used_mib": 50_000}, {}, "memory_taken", "30.8 of 79.6 GiB are free on NVIDIA H100"),
        ({"compute_capability": "7.5"}, {"dtype": "bfloat16"}, "dtype_unsupported", "has 7.5"),
    ],
)
def test_a_card_that_can_not_take_it_is_told_once(
    machine: Machine, fields: dict[str, Any], profile: dict[str, Any], code: str, text: str
) -> None:
    machine.inventory["gpus"] = [card(**fields)]
    (problem,) = machine.check(**profile).problems
    assert problem.code == code
    assert text in problem.text


TWO = {"rank": 0, "nodes": 2, "rendezvous_address": "127.0.0.1", "rendezvous_port": None}


def over_two(machine: Machine, **spec: Any) -> list[tuple[str, str]]:
    given = {**TWO, "rendezvous_port": free_port(), **spec}
    found = machine.check(spec=given, tensor_parallel=2, nodes=2, env=spec.pop("env", {}))
    return [(problem.code, problem.text) for problem in found.problems]


@pytest.mark.parametrize(
    ("adapters", "env", "text"),
    [
        ([("mlx5_0", "DOWN"), ("mlx5_1", "INIT")], {}, "none of this node's 2 adapter ports is active"),
        ([("mlx5_0", "DOWN"), ("mlx5_1", "ACTIVE")], {"NCCL_IB_HCA": "mlx5_1,mlx5_0"}, "its adapter mlx5_0 is DOWN"),
        ([("mlx5_10", "ACTIVE")], {"NCCL_IB_HCA": "=mlx5_1:1"}, "its adapter mlx5_1:1 is not on this node"),
        ([], {"NCCL_SOCKET_IFNAME": "eth77"}, "NCCL_SOCKET_IFNAME is eth77, and this node has"),
        ([("mlx5_0", "ACTIVE")], {}, None),
        ([("mlx5_10", "ACTIVE")], {"NCCL_IB_HCA": "mlx5_1"}, None),
        ([("mlx5_0", "DOWN"), ("mlx5_1", "ACTIVE")], {"NCCL_IB_HCA": "^mlx5_0"}, None),
        ([], {"GLOO_SOCKET_IFNAME": "lo"}, None),
        ([], {}, None),
    ],
)
def test_the_adapters_of_a_replica_over_nodes_are_up(
    machine: Machine, adapters: list[tuple[str, str]], env: dict[str, str], text: str | None
) -> None:
    machine.inventory["adapters"] = [adapter(*each) for each in adapters]
    found = over_two(machine, fabric_env=env)
    assert [code for code, _ in found] == (["fabric_down"] if text else [])
    assert not text or text in found[0][1]
    assert not machine.check().problems  # on one node it does not matter


def test_the_place_where_ranks_meet_is_free(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ((code, text),) = over_two(machine, rendezvous_port=port)
        assert (code, f"port {port}, at which its ranks meet" in text) == ("no_port", True)
        assert over_two(machine, rendezvous_port=port, rank=1) == []  # it is the head's


def test_room_for_output_and_shared_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=100 * 1024 * 1024)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (problem,) = machine.check().problems
    assert problem.code == "disk_full"
    assert "100 MiB are free" in problem.text
    assert "may take 128 MiB" in problem.text
    machine.config = dataclasses.replace(machine.config, log_bytes=65_536)
    monkeypatch.setattr(models, "_free_mib", lambda path: 64)
    machine.inventory["gpus"] = [card(), card(uuid="GPU-2", index=2)]
    (problem,) = machine.check(spec={"gpus": ("GPU-1", "GPU-2")}, tensor_parallel=2).problems
    assert (problem.code, "64 MiB are free in /dev/shm" in problem.text) == ("shm_too_small", True)


def test_several_reasons_are_one_sentence_with_the_first_ones_code(machine: Machine, tmp_path: Path) -> None:
    tiny_hf.write(tmp_path / "m")
    machine.inventory["gpus"] = [card(processes=[{"pid": 5, "name": "jupyter"}])]
    refusal = machine.check(model=str(tmp_path / "m"), max_model_len=9999, dtype="bf16").refusal
    assert refusal is not None
    assert refusal.code == "gpu_busy"
    assert "jupyter (pid 5); cannot run" in refusal.detail
    assert "9999 is above the model's 2048" in refusal.detail
    assert refusal.hint


def test_arguments_say_that_weights_or_tokenizer_come_from_elsewhere(machine: Machine, tmp_path: Path) -> None:
    tiny_hf.write(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    model = str(tmp_path / "m")
    assert [p.code for p in machine.check(model=model).problems] == ["weights_incomplete"]
    assert machine.check(model=model, extra_args=["--load-format=dummy"]).problems == ()


def test_what_another_node_may_do_better_is_known_as_such() -> None:
    """The reconciler tries another node once for these, and none for what is wrong everywhere."""
    for code in ("weights_incomplete", "flag_unknown", "memory_taken", "fabric_down", "shm_too_small", "disk_full"):
        assert FailureCode(code) in NODE_LOCAL_FAILURES
    assert FailureCode.INVALID_PROFILE not in NODE_LOCAL_FAILURES


def test_ten_starts_at_once_get_ten_ports(tmp_path: Path) -> None:
    ports = Ports(free_ports(40), "127.0.0.1")
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: ports.take(set(), 2), range(10)))
    given = [port for each in found if each is not None for port in each]
    assert len(given) == len(set(given)) == 20


def test_a_squatted_port_is_passed_over_and_a_row_is_unbroken() -> None:
    clock = [0.0]
    these = free_ports(12)
    first = these.start
    ports = Ports(these, "127.0.0.1", now=lambda: clock[0])
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier test's connections may linger
        squatter.bind(("", first + 2))
        squatter.listen()
        row = ports.take({first + 5}, 3)
        assert row is not None
        assert len(row) == 3
        assert first + 2 not in row
        assert first + 5 not in row
        assert ports.take(set(), 50) is None
        clock[0] += 10  # nobody took them
        assert ports.take({first + 5}, 3) == row


def test_two_agents_on_one_machine_begin_at_different_ports_and_use_the_whole_range() -> None:
    """An engine binds its port up to a minute after it was tried."""
    ports = free_ports(10)
    assert Ports(ports, "127.0.0.1", owner="/state/a").take(set()) != Ports(ports, "127.0.0.1", owner="/b").take(set())
    one = Ports(ports, "127.0.0.1", owner="/state/a")
    given = [one.take(set()) for _ in range(11)]
    assert {row[0] for row in given if row} <= set(ports)
    assert given[10] is None


def test_an_order_that_does_not_fit_reaches_the_control_plane_as_code_sentence_and_hint(machine: Machine) -> None:
    machine.inventory = {"gpus": []}
    refusal = machine.check().refusal
    assert refusal is not None
    assert (refusal.code, refusal.detail, refusal.hint) == (
        "gpu_missing",
        "cannot start m/1: GPU GPU-1 is not in this node's inventory",
        "run `inventory`",
    )


def test_a_program_that_agent_yaml_names_and_that_is_not_there_is_told_before_anybody_orders_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "vllm")
    named = {"vllm": config.EnginePolicy(command=(missing, "serve")), "echo": config.EnginePolicy()}
    agent = config.AgentConfig(
        server="ws://127.0.0.1:1",
        node_id="n",
        mgmt_addr="127.0.0.1",
        state_dir=tmp_path,
        policy=config.Policy(engines={**named, "vlm": config.EnginePolicy()}),
    )
    told = preflight.engine_warnings(agent)
    assert told == (
        f"agent.yaml: the program {missing} of policy.engines.vllm is not on this node, so it runs none of vllm; "
        "install it, or correct policy.engines.vllm.command",
        "agent.yaml: policy.engines.vlm is no engine; did you mean vllm?",
    )
    Path(missing).touch(mode=0o755)
    assert [text for text in preflight.engine_warnings(agent) if missing in text] == []


def test_what_no_engine_can_be_started_for_travels_with_the_inventory_and_changes_its_fingerprint() -> None:
    told = ["agent.yaml: policy.engines.vlm is no engine; did you mean vllm?"]
    options = DiscoveryOptions(node_id="n", use_gpu=False, ib_root=Path("/none"), also_warned=lambda: tuple(told))
    discovery = Discovery(options)
    before = discovery.look()
    assert told[0] in before.to_json()["warnings"]
    told.clear()
    after = discovery.look()
    assert "policy.engines" not in str(after.to_json())
    assert before.fingerprint() != after.fingerprint()
