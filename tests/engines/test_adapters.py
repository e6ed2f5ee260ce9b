"""Every argument list that the adapters can make, against each engine's complete option list by exact name."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.engines import Launch, LaunchSpec, Origin, PlanError, internal_ports, plan
from agent_client.engines.options import Option, table
from agent_client.profile import parse_profile
from tests.e2e.harness import ROOT

KEY = "CANARY-key"
SIZES = st.integers(1, 8)
FIELDS = {
    "tensor_parallel": SIZES,
    "pipeline_parallel": SIZES,
    "data_parallel": SIZES,
    "expert_parallel": st.booleans(),
    "max_model_len": st.integers(1, 10**6),
    "gpu_memory_utilization": st.floats(0.01, 1),
    "dtype": st.sampled_from(["auto", "bfloat16"]),
    "quantization": st.sampled_from(["fp8", "awq"]),
    "kv_cache_dtype": st.sampled_from(["auto", "fp8", "fp8_e5m2"]),
}
CHOICES = {"--dtype", "--quantization", "--kv-cache-dtype"}
PROFILES = st.fixed_dictionaries({}, optional=FIELDS)
LLAMA_FIELDS: dict[str, Any] = {
    "tensor_parallel": SIZES,
    "max_model_len": FIELDS["max_model_len"],
    "kv_cache_dtype": st.sampled_from(["auto", "q8_0", "f16", "float16"]),
}
NAMES = st.lists(st.sampled_from(["qwen", "qwen-chat", "default"]), min_size=1, max_size=3, unique=True)


def launch(engine: str, *, nodes: int = 1, **fields: Any) -> Launch:
    values: dict[str, Any] = {"replica": "m/1", "served_names": ("m",), "port": 20_000, "engine_key": KEY}
    for name in (
        *("rank", "gpus", "command", "command_origin", "served_names", "rendezvous", "address", "engine_key"),
        *("internal_ports", "fabric_env", "engine_env"),
    ):
        if name in fields:
            values[name] = fields.pop(name)
    profile = parse_profile({"engine": engine, "model": "/models/m", "nodes": nodes, **fields})
    return plan(LaunchSpec(profile=profile, nodes=nodes, **values))


def checked(words: tuple[str, ...], program: str) -> dict[str, list[str]]:
    """The options by name with their values; fails on a name that the list lacks, and on a wrong number of values."""
    known: dict[str, Option] = {name: option for option in table(program).options for name in option.names}
    found: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        name = rest.pop(0)
        assert name in known, f"{program} has no {name} in {words}"
        values: list[str] = []
        while rest and not rest[0].startswith("-"):
            values.append(rest.pop(0))
        least, most = {"": (0, 0), "1": (1, 1), "?": (0, 1), "*": (0, 99), "+": (1, 99)}[known[name].values]
        assert least <= len(values) <= most, (name, values)
        assert name not in found, f"{name} is given twice"
        found[name] = values
    return found


def choices(program: str) -> dict[str, list[str]]:
    path = ROOT / "tests" / "support" / "vllm_standin" / "options.json"
    if program == "sglang":
        path = Path(__file__).parent / "data" / "sglang_0.5.23_options.json"
    rows = json.loads(path.read_text())["options"]
    return {name: row["choices"] for row in rows for name in row["names"] if row.get("choices")}


def over_nodes(profile: dict[str, Any], nodes: int) -> bool:
    world = 1
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        world *= profile.get(name, 1)
    return world % nodes == 0


@given(PROFILES, NAMES, st.sampled_from([1, 2, 4]), st.data())
def test_vllm(profile: dict[str, Any], names: list[str], nodes: int, data: st.DataObject) -> None:
    nodes = nodes if over_nodes(profile, nodes) else 1
    rank = data.draw(st.integers(0, nodes - 1))
    made = launch("vllm", nodes=nodes, rank=rank, served_names=tuple(names), rendezvous=("10.0.0.1", 29_501), **profile)
    assert made.argv[:3] == ("vllm", "serve", "/models/m")
    found = checked(made.argv[3:], "vllm")
    assert found["--served-model-name"] == names
    assert ("--headless" in found) is (rank > 0)
    assert ("--nnodes" in found) is (nodes > 1)
    known = choices("vllm")
    assert all(found[name][0] in known[name] for name in CHOICES & set(found) & set(known))
    assert KEY not in " ".join(made.argv)


@given(PROFILES, NAMES, st.sampled_from([1, 2, 4]), st.data())
def test_sglang(profile: dict[str, Any], names: list[str], nodes: int, data: st.DataObject) -> None:
    nodes = nodes if over_nodes(profile, nodes) else 1
    rank = data.draw(st.integers(0, nodes - 1))
    made = launch(
        "sglang", nodes=nodes, rank=rank, served_names=tuple(names), rendezvous=("10.0.0.1", 25_000), **profile
    )
    at = made.argv.index("-m")
    assert made.argv[at + 1] == "sglang.launch_server"
    found = checked(made.argv[at + 2 :], "sglang")
    assert found["--served-model-name"] == names[:1]
    assert ("--dist-init-addr" in found) is (nodes > 1)
    known = choices("sglang")
    assert all(found[name][0] in known[name] for name in CHOICES & set(found) & set(known))
    assert KEY not in " ".join(made.argv)


LLAMA = {
    "llama_server": (),
    "xllamacpp_server": (sys.executable, "/agent/programs/xllamacpp_server.py"),
    "llama_cpp_python": (sys.executable, "-m", "llama_cpp.server"),
}


@pytest.mark.parametrize("program", LLAMA)
@given(st.fixed_dictionaries({}, optional=LLAMA_FIELDS), NAMES)
def test_llamacpp(program: str, profile: dict[str, Any], names: list[str]) -> None:
    command = LLAMA[program]
    options = {} if program == "llama_cpp_python" else {"parallel": 2}  # that one answers one request at a time
    made = launch("llamacpp", command=command, served_names=tuple(names), options=options, **profile)
    found = checked(made.argv[len(command) or 1 :], program)
    assert found["--model"] == ["/models/m"]
    assert found["--model_alias" if program == "llama_cpp_python" else "--alias"] == names[:1]  # answers carry it
    if program != "llama_cpp_python" and "max_model_len" in profile:
        assert found["--ctx-size"] == [str(2 * profile["max_model_len"])]  # its slots share it
    assert KEY not in " ".join(made.argv)


def test_both_nodes_of_a_replica_name_the_same_meeting() -> None:
    for engine, address, flag in (
        ("vllm", "--master-addr", "10.0.0.1"),
        ("sglang", "--dist-init-addr", "10.0.0.1:29501"),
    ):
        ranks = [
            launch(engine, nodes=2, rank=rank, tensor_parallel=4, rendezvous=("10.0.0.1", 29_501)).argv
            for rank in (0, 1)
        ]
        for rank, argv in enumerate(ranks):
            assert argv[argv.index(address) + 1] == flag
            assert argv[argv.index("--nnodes") + 1] == "2"
            assert argv[argv.index("--node-rank") + 1] == str(rank)
        assert set(ranks[1]) - set(ranks[0]) <= {"--headless", "1"}


def test_each_node_of_a_replica_tells_its_own_address() -> None:
    for engine, variable in (("vllm", "VLLM_HOST_IP"), ("sglang", "SGLANG_HOST_IP")):
        fields: dict[str, Any] = {"tensor_parallel": 2, "address": "10.0.0.2", "rank": 1, "rendezvous": ("10.0.0.1", 5)}
        env = {v.name: v.value for v in launch(engine, nodes=2, **fields).env}
        assert env[variable] == "10.0.0.2"
        assert variable not in {v.name for v in launch(engine).env}


@pytest.mark.parametrize(("engine", "variable"), [("vllm", "VLLM_HOST_IP"), ("sglang", "SGLANG_HOST_IP")])
def test_a_value_of_the_profile_wins_over_the_fabrics_and_that_over_the_automatic_one(
    engine: str, variable: str
) -> None:
    fields: dict[str, Any] = {"tensor_parallel": 2, "address": "10.0.0.2", "rank": 1, "rendezvous": ("10.0.0.1", 5)}
    found = []
    for extra in ({}, {"fabric_env": {variable: "10.9.0.2"}}, {"fabric_env": {variable: "x"}, "env": {variable: "me"}}):
        (row,) = [row for row in launch(engine, nodes=2, **fields, **extra).env if row.name == variable]
        found.append((row.value, row.origin))
    assert found == [("10.0.0.2", "automatic"), ("10.9.0.2", "fabric"), ("me", "user")]


def test_an_address_of_ipv6_is_bracketed_where_a_port_follows() -> None:
    argv = launch("sglang", nodes=2, tensor_parallel=2, rendezvous=("fd00::1", 25_000)).argv
    assert argv[argv.index("--dist-init-addr") + 1] == "[fd00::1]:25000"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_nodes_that_do_not_know_where_to_meet_start_nothing(engine: str) -> None:
    with pytest.raises(PlanError, match="no address and port to meet at"):
        launch(engine, nodes=2, tensor_parallel=2)


def test_sglang_experts_are_spread_over_all_ranks_and_its_cache_dtype_has_another_name() -> None:
    argv = launch("sglang", tensor_parallel=4, expert_parallel=True, kv_cache_dtype="fp8").argv
    assert argv[argv.index("--ep-size") + 1] == "4"
    assert argv[argv.index("--kv-cache-dtype") + 1] == "fp8_e4m3"


def test_sglang_serves_no_name_with_a_colon() -> None:
    with pytest.raises(PlanError, match="must have no colon"):
        launch("sglang", served_names=("qwen:7b",))


def test_a_policys_own_command_gets_the_key_as_an_argument_that_is_not_shown() -> None:
    made = launch("sglang", command=("sglang", "serve"))
    assert made.argv[:2] == ("sglang", "serve")
    assert made.argv[made.argv.index("--api-key") + 1] == KEY
    assert KEY not in " ".join(made.shown_argv)
    assert made.shown_argv[made.argv.index(KEY)] == "(secret)"
    assert not any(word.secret for word in launch("sglang", command=("sglang", "serve"), engine_key=None).words)
    other = launch("sglang", command=("/opt/sglang/bin/python", "-m", "sglang.launch_server"))
    assert other.argv[0] == "/opt/sglang/bin/python"
    assert KEY not in " ".join(other.argv)


def test_sglang_gets_its_key_inside_and_nobody_sees_it(tmp_path: Path) -> None:
    """With a package in SGLang's place that tells what it was given, and starts a child as SGLang does."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "launch_server.py").write_text(
        textwrap.dedent(
            """
            import json, multiprocessing, os, sys

            if __name__ == "__main__":
                child = multiprocessing.get_context("spawn").Process(target=print, args=("child",))
                child.start()
                child.join()
                seen = open("/proc/self/cmdline").read()
                env = "LLMGW_ENGINE_KEY" in os.environ
                print(json.dumps({"argv": sys.argv[1:], "seen": seen, "child": child.exitcode, "env": env}))
            """
        )
    )
    made = launch("sglang", command=(sys.executable, "-m", "sglang.launch_server"), gpus=("GPU-1",))
    program = ROOT / "agent_client" / "programs" / "sglang_key.py"
    argv = [str(program) if word.endswith(program.name) else word for word in made.argv]
    env = {v.name: v.value for v in made.env} | {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=50)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["argv"][-2:] == ["--api-key", KEY]
    assert told["argv"][:2] == ["--model-path", "/models/m"]
    assert KEY not in told["seen"]
    assert (told["child"], told["env"]) == (0, False)


def test_each_word_and_variable_tells_who_decided_it() -> None:
    made = launch(
        "vllm",
        nodes=2,
        tensor_parallel=2,
        rendezvous=("10.0.0.1", 29_501),
        command=("/opt/vllm", "serve"),
        command_origin=Origin.NODE,
        extra_args=["--max-num-seqs=8", "-O", "3"],
        env={"NCCL_DEBUG": "INFO", "NCCL_IB_GID_INDEX": "3", "HF_HOME": "/hf"},
        fabric_env={"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_GID_INDEX": "5"},
        engine_env={"NCCL_IB_HCA": "mlx5_4", "HF_HOME": "/other"},
    )
    values = {v.name: (v.value, v.origin) for v in made.env}
    assert values["NCCL_IB_GID_INDEX"] == ("3", Origin.USER)
    assert values["HF_HOME"] == ("/hf", Origin.USER)
    assert values["NCCL_IB_HCA"] == ("mlx5_4", Origin.NODE)
    assert values["VLLM_HOST_IP"] == ("127.0.0.1", Origin.AUTOMATIC)
    assert values["CUDA_VISIBLE_DEVICES"][1] is Origin.LLMGW
    shown = made.origins
    assert shown["/opt/vllm"] is Origin.NODE
    for name in ("/models/m", "--tensor-parallel-size", "--max-num-seqs", "-O"):
        assert shown[name] is Origin.USER
    for name in ("--port", "--host", "--master-addr", "--nnodes", "--served-model-name"):
        assert shown[name] is Origin.LLMGW
    assert {name for name in shown if name.isdecimal()} == set()
    flags = {word.split("=")[0] for word in made.argv if word.startswith("-")}
    assert set(shown) == flags | set(values) | {"/opt/vllm", "serve", "/models/m"}


@pytest.mark.parametrize(
    ("engine", "flag", "said"),
    [
        ("vllm", "--tensor-parallel-size", {"tensor_parallel": 2}),
        ("sglang", "--tp-size", {"tensor_parallel": 2}),
        ("llamacpp", "--parallel", {"options": {"parallel": 2}}),
    ],
)
def test_what_nobody_wrote_is_not_called_a_users(engine: str, flag: str, said: dict[str, Any]) -> None:
    assert launch(engine, gpus=("GPU-0",)).origins[flag] is Origin.LLMGW
    assert launch(engine, gpus=("GPU-0",), **said).origins[flag] is Origin.USER


def test_what_is_worked_out_gives_way_to_a_users_value() -> None:
    fields: dict[str, Any] = {"tensor_parallel": 2, "rendezvous": ("10.0.0.1", 5), "env": {"VLLM_HOST_IP": "10.9.9.9"}}
    env = {v.name: (v.value, v.origin) for v in launch("vllm", nodes=2, **fields).env}
    assert env["VLLM_HOST_IP"] == ("10.9.9.9", Origin.USER)


def test_a_secret_among_the_arguments_is_not_shown() -> None:
    made = launch("vllm", extra_args=["--hf-token", "hf_1", "--hf-token=hf_2", "--max-num-batched-tokens", "8192"])
    assert "hf_1" in made.argv
    assert not [word for word in made.shown_argv if "hf_" in word]
    assert "8192" in made.shown_argv


PORTS = [
    ("vllm", {}, 1, {"VLLM_PORT": "20500"}, []),
    ("vllm", {"data_parallel": 2}, 0, {}, []),
    ("sglang", {}, 1, {}, ["--nccl-port", "20500"]),
    ("sglang", {"extra_args": ["--attn-dp-size", "2"]}, 8, {}, ["--dist-init-addr", "127.0.0.1:20501"]),
    ("llamacpp", {}, 0, {}, []),
]


@pytest.mark.parametrize(("engine", "profile", "count", "env", "words"), PORTS)
def test_the_ports_between_an_engines_own_processes_are_given(
    engine: str, profile: dict[str, Any], count: int, env: dict[str, str], words: list[str]
) -> None:
    assert internal_ports(parse_profile({"engine": engine, "model": "m", **profile})) == count
    made = launch(engine, internal_ports=tuple(range(20_500, 20_500 + count)), **profile)
    checked(made.argv[made.argv.index("--host") :], "llama_server" if engine == "llamacpp" else engine)
    assert {v.name: v.value for v in made.env if v.name in ("VLLM_PORT",)} == env
    assert " ".join(words) in " ".join(made.argv)


def test_copies_over_nodes_meet_beside_the_rendezvous() -> None:
    for rank in (0, 1):
        argv = launch("vllm", nodes=2, rank=rank, data_parallel=2, rendezvous=("10.0.0.1", 29_501)).argv
        assert argv[argv.index("--data-parallel-rpc-port") + 1] == "29502"


def test_sglang_that_is_not_installed_is_told_in_one_line() -> None:
    program = ROOT / "agent_client" / "programs" / "sglang_key.py"
    argv = [sys.executable, str(program), "-m", "sglang.launch_server", "--port", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot start: the package sglang is not installed for ")
