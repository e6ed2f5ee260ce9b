"""`validate` on wrong profiles: each refused with the number that is wrong; on right ones: the exact command."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_client.__main__ import main
from tests.profile.models import MODELS, config_of
from tests.support import model_folder, tiny_gguf

QWEN7, QWEN8, LLAMA8 = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "meta-llama/Meta-Llama-3.1-8B"
LLAMA70, GPTQ, FP8 = "meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "Qwen/Qwen3-32B-FP8"
H100, T4, L4 = "h100-sxm-80gb", "t4-16gb", "l4-24gb"


def gpu(index: int, gpu_class: str, name: str, total: int, capability: str, **fields: Any) -> dict[str, Any]:
    fixed = {"index": index, "uuid": f"GPU-{index}", "class": gpu_class, "name": name, "domain": gpu_class}
    memory = {"memory_total_mib": total, "memory_used_mib": 4, "compute_capability": capability}
    return {**fixed, **memory, "placeable": True, "problems": [], "processes": [], **fields}


INVENTORY = {
    "gpus": [
        *(gpu(n, H100, "NVIDIA H100 80GB HBM3", 81_559, "9.0") for n in range(4)),
        gpu(4, H100, "NVIDIA H100 80GB HBM3", 81_559, "9.0", memory_used_mib=70_004, domain="other"),
        gpu(5, T4, "Tesla T4", 15_360, "7.5"),
        gpu(6, L4, "NVIDIA L4", 23_034, "8.9", domain="l4"),
    ],
    "adapters": [{"hca": "mlx5_0", "ports": [{"port": 1, "state": "DOWN"}]}],
}


class Node:
    """A machine with vLLM 0.32 and these cards, and the models that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "env" / "bin" / "vllm"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        (folder / "env" / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0.dist-info").mkdir(parents=True)
        sglang = folder / "sg" / "bin" / "python3"
        sglang.parent.mkdir(parents=True)
        sglang.symlink_to("/bin/false")
        (folder / "sg" / "lib" / "python3.11" / "site-packages" / "sglang-0.5.23.dist-info").mkdir(parents=True)
        engines = {
            "vllm": {"command": [str(program), "serve"]},
            "sglang": {"command": [str(sglang), "-m", "sglang.launch_server"]},
            "llamacpp": {"command": ["/bin/false"]},
        }
        policy = {"engines": engines, "model_roots": [str(folder)], "ports": "24000-24050"}
        self.write("agent.yaml", {"policy": policy, "mgmt_addr": "127.0.0.1"})
        self.write("inventory.json", INVENTORY)

    def write(self, name: str, data: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(data))
        return path

    def model(self, name: str) -> str:
        path = self.folder / name
        if not path.exists():
            model_folder.write(path, config_of(name), weights_bytes=MODELS[name]["tensor_bytes"])
        return str(path)

    def run(self, data: Any, *words: str) -> int:
        argv = ["validate", str(self.write("profile.yaml", data)), "--config", str(self.folder / "agent.yaml")]
        argv += ["--state-dir", str(self.folder / "state"), "--inventory", str(self.folder / "inventory.json"), *words]
        return main(argv)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def cut(name: str) -> Callable[[Node], Any]:
    def act(node: Node) -> None:
        path = Path(node.model(name)) / "model.safetensors"
        os.truncate(path, path.stat().st_size - 1_000_000_000)

    return act


def without(name: str, file: str) -> Callable[[Node], Any]:
    return lambda node: (Path(node.model(name)) / file).unlink()


def nothing(_node: Node) -> None:
    pass


#: What was done to the model, the model, the profile; the code and the number that must be named.
WRONG: list[tuple[Callable[[Node], Any], str, dict[str, Any], str, str]] = [
    (nothing, QWEN7, {"tensor_parallel": 8}, "heads_not_divisible", "28 attention heads do not divide"),
    (nothing, QWEN7, {"tensor_parallel": 14, "nvlink": "off"}, "kv_heads_not_divisible", "4 KV heads do not divide"),
    (nothing, QWEN8, {"tensor_parallel": 3}, "vocabulary_not_divisible", "151936, padded to 151936"),
    (nothing, QWEN8, {"max_model_len": 131_072}, "context_exceeds_model", "131072 is above the model's 40960"),
    (nothing, QWEN8, {"gpu_class": T4, "dtype": "bfloat16"}, "dtype_unsupported", "8.0, Tesla T4 has 7.5"),
    (nothing, QWEN8, {"dtype": "bf16"}, "dtype_unknown", "no dtype bf16"),
    (nothing, QWEN8, {"quantization": "wizquant"}, "quantization_unknown", "no quantization wizquant"),
    (nothing, GPTQ, {"quantization": "fp8"}, "quantization_differs", "stored as gptq"),
    (nothing, GPTQ, {"tensor_parallel": 2}, "block_not_divisible", "14784 of its MLP width"),
    (nothing, FP8, {"engine": "sglang", "gpu_class": T4}, "quantization_unsupported", "8.0, Tesla T4 has 7.5"),
    (nothing, LLAMA70, {}, "memory_weights", "131.4 GiB of each GPU, 73.3 of 79.6 GiB"),
    (nothing, LLAMA8, {"gpu_class": L4}, "memory_context", "131072 tokens needs 16.0 GiB"),
    (nothing, LLAMA8, {"gpu_memory_utilization": 0.3}, "memory_share", "0.3 of the card's 79.6 GiB is 23.9 GiB"),
    (nothing, QWEN8, {"pipeline_parallel": 40, "nvlink": "off"}, "too_many_stages", "40 is more than its 36 layers"),
    (nothing, QWEN8, {"expert_parallel": True}, "no_experts", "it has no experts"),
    (
        nothing,
        QWEN8,
        {"min_compute_capability": "10.0"},
        "too_few_free",
        "GPU 0 has compute capability 9.0, 10.0 needed",
    ),
    (nothing, QWEN8, {"tensor_parallel": 8}, "too_few_free", "4 fitting h100-sxm-80gb in one NVLink domain, 8 needed"),
    (nothing, QWEN8, {"gpu_class": "a100-sxm-80gb"}, "no_class", "a100-sxm-80gb is needed"),
    (nothing, QWEN8, {"extra_args": ["--swap-space", "4"]}, "flag_unknown", "--swap-space in extra_args: the vllm"),
    (nothing, QWEN8, {"extra_args": ["--tensor-parallel", "2"]}, "flag_owned", "it reaches --tensor-parallel-size"),
    (nothing, QWEN8, {"gpu_memory_utilization": 1.7}, "bad_value", "gpu_memory_utilization = 1.7"),
    (nothing, QWEN8, {"swap_space": 4}, "unknown_field", "`swap_space` is not known"),
    (nothing, QWEN8, {"tensor_parallel": 2, "nodes": 3}, "nodes_not_divisible", "2 GPUs do not divide"),
    (nothing, QWEN8, {"tensor_parallel": 2, "nodes": 2}, "fabric_down", "none of this node's 1 adapter ports"),
    (nothing, QWEN8, {"env": {"HF_TOKEN": {"secret": "hub"}}}, "secret_missing", "no secret 'hub'"),
    (nothing, QWEN8, {"env": {"VLLM_PORT": "1"}}, "env_owned", "llmgw sets VLLM_PORT itself"),
    (nothing, QWEN8, {"engine": "echo"}, "policy_refused", "not echo"),
    (nothing, QWEN8, {"model": "/etc/models/x"}, "model_missing", "there is no /etc/models/x"),
    (nothing, QWEN8, {"model": "/usr"}, "policy_refused", "/usr is outside this node's model_roots"),
    (nothing, QWEN8, {"model": "~/models/x"}, "model_missing", "~/models/x is no whole path"),
    (nothing, QWEN8, {"engine": "llamacpp"}, "model_unusable", "this is a folder"),
    (cut(QWEN8), QWEN8, {}, "weights_incomplete", "model.safetensors has 15.38 GB, its header says 16.38 GB"),
    (without(QWEN8, "config.json"), QWEN8, {}, "config_missing", "there is no config.json"),
    (without(QWEN8, "tokenizer.json"), QWEN8, {}, "tokenizer_missing", "there is no tokenizer"),
    (without(QWEN8, "model.safetensors"), QWEN8, {}, "weights_incomplete", "there are no weights"),
]


@pytest.mark.parametrize(
    ("damage", "name", "profile", "code", "number"), WRONG, ids=[f"{row[3]}-{n}" for n, row in enumerate(WRONG)]
)
def test_a_wrong_profile_is_refused_at_once_with_the_number(
    node: Node, capsys: Any, damage: Any, name: str, profile: dict[str, Any], code: str, number: str
) -> None:
    data = {"engine": "vllm", "model": node.model(name), "gpu_class": H100, **profile}
    if data["engine"] == "echo":
        data |= {"gpus": 0}
        del data["gpu_class"]
    damage(node)
    begin = time.process_time()
    assert node.run(data, "--json") == 1
    assert time.process_time() - begin < 1  # of this process alone: other work on the machine does not count
    out = json.loads(capsys.readouterr().out)
    assert out["ok"] is False
    assert code in [problem["code"] for problem in out["problems"]], out["problems"]
    (found,) = [problem for problem in out["problems"] if problem["code"] == code][:1]
    assert number in found["text"], found["text"]
    assert found["text"].startswith("cannot ")
    assert "CANARY" not in json.dumps(out)


def test_a_right_profile_shows_command_environment_origins_and_memory(node: Node, capsys: Any) -> None:
    profile = {"engine": "vllm", "model": node.model(QWEN8), "tensor_parallel": 2, "gpu_class": H100}
    data = {"name": "qwen", "aliases": ["default"], "profile": {**profile, "env": {"HF_TOKEN": "CANARY"}}}
    assert node.run(data, "--json", "--show-command") == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["ok"], out["problems"]) == (True, [])
    argv = out["argv"]
    assert argv[argv.index("--served-model-name") + 1 :][:2] == ["qwen", "default"]
    assert out["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert out["env"]["HF_TOKEN"] == out["env"]["VLLM_API_KEY"] == "(secret)"
    assert out["origins"]["--tensor-parallel-size"] == out["origins"]["HF_TOKEN"] == "user"
    assert out["origins"]["--port"] == out["origins"]["CUDA_VISIBLE_DEVICES"] == "llmgw"
    assert out["origins"][argv[0]] == "node policy"
    assert out["memory"]["parts"][0]["bytes"] == MODELS[QWEN8]["tensor_bytes"] // 2
    assert "CANARY" not in json.dumps(out)


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"pipeline_parallel": 36}, "lower pipeline_parallel"),
        ({"tensor_parallel": 8}, "lower tensor_parallel"),
        ({"tensor_parallel": 4, "pipeline_parallel": 2}, "lower tensor_parallel or pipeline_parallel"),
        ({"memory_mib_per_gpu": 90_000}, "lower memory_mib_per_gpu"),
        ({"memory_mib_per_gpu": 90_000, "tensor_parallel": 8}, "lower tensor_parallel"),
        ({"min_compute_capability": "12.0"}, "lower min_compute_capability, or use a node with newer cards"),
    ],
)
def test_a_hint_names_what_can_be_changed(node: Node, capsys: Any, fields: dict[str, Any], hint: str) -> None:
    assert node.run({"engine": "vllm", "model": node.model(QWEN8), "gpu_class": H100, **fields}, "--json") == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    (told,) = [problem["hint"] for problem in problems if problem["code"] == "too_few_free"]
    assert told.split(", or set nvlink")[0] == hint


def test_the_command_that_is_shown_invents_nothing(node: Node, capsys: Any) -> None:
    """The program that the node names, there or not, and no card's UUID where there is no card."""
    (node.folder / "env" / "bin" / "vllm").unlink()
    node.write("inventory.json", {**INVENTORY, "gpus": []})
    assert node.run({"engine": "vllm", "model": node.model(QWEN8), "tensor_parallel": 2}, "--json") == 1
    out = json.loads(capsys.readouterr().out)
    assert out["argv"][:2] == [str(node.folder / "env" / "bin" / "vllm"), "serve"]
    assert out["env"]["CUDA_VISIBLE_DEVICES"] == "(card 0),(card 1)"


def test_what_will_be_tight_is_a_warning_beside_ok(node: Node, capsys: Any) -> None:
    data = {"engine": "vllm", "model": node.model(QWEN8), "gpu_class": H100, "max_model_len": 2048}
    tight = {**data, "gpu_memory_utilization": 0.22}
    assert node.run(tight) == 0
    told = capsys.readouterr()
    assert told.out == "ok\n"
    assert told.err.startswith("warning: ")
    assert "17.5 of 79.6 GiB may be used (gpu_memory_utilization 0.22); raise gpu_memory_utilization" in told.err
    assert node.run(tight, "--json") == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0]["code"] == "memory_tight"
    assert node.run(data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


def test_every_rank_is_shown_where_there_are_several(node: Node, capsys: Any) -> None:
    node.write("inventory.json", {**INVENTORY, "adapters": []})
    data = {"engine": "vllm", "model": node.model(QWEN8), "tensor_parallel": 4, "nodes": 2, "gpu_class": H100}
    assert node.run(data, "--json") == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert ["--headless" in rank["argv"] for rank in ranks] == [False, True]
    assert [rank["argv"][rank["argv"].index("--node-rank") + 1] for rank in ranks] == ["0", "1"]
    assert ranks[0]["origins"]["VLLM_HOST_IP"] == "automatic"
    assert node.run(data, "--show-command") == 0
    text = capsys.readouterr().out
    assert "# rank 1 of 2" in text
    assert "VLLM_HOST_IP=127.0.0.1   # automatic" in text
    assert "# --node-rank: llmgw" in text
    assert "# weights: 7.63 GiB = 15.26 GiB (files) / (TP 2 x PP 1)" not in text
    assert "# weights: 3.81 GiB = 15.26 GiB (files) / (TP 4 x PP 1)" in text


def test_a_gguf_file_is_read_too(node: Node, capsys: Any) -> None:
    path = node.folder / "tiny.gguf"
    tiny_gguf.write(str(path))
    data = {"engine": "llamacpp", "model": str(path), "gpus": 0}
    assert node.run(data, "--json") == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert 0 < memory["parts"][0]["bytes"] < path.stat().st_size
    os.truncate(path, path.stat().st_size - 10)
    assert node.run(data) == 1
    assert "it was cut off" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "[]", "- a", "engine: [", "\x00", "profile: 5", "5", "[" * 20_000, "engine: echo\nengine: vllm"]
)
def test_a_file_that_is_no_profile_is_told_without_a_traceback(node: Node, capsys: Any, text: str) -> None:
    (node.folder / "x.yaml").write_text(text)
    assert main(["validate", str(node.folder / "x.yaml"), "--json", "--state-dir", str(node.folder / "state")]) == 1
    assert yaml.safe_load(capsys.readouterr().out)["problems"][0]["text"].startswith("cannot ")


def test_a_file_that_is_not_there_is_named_and_so_is_a_wrong_inventory(node: Node, capsys: Any) -> None:
    profile, missing = str(node.write("p.yaml", {"engine": "echo"})), str(node.folder / "nope")
    for argv, text in (
        ([missing], f"cannot read {missing}: No such file or directory; give a YAML file"),
        ([profile, "--inventory", missing], f"cannot read {missing}: No such file or directory; give what"),
        ([profile, "--inventory", profile], f"cannot read {profile}: it is no inventory; give what"),
    ):
        assert main(["validate", *argv, "--state-dir", str(node.folder / "state")]) == 1
        assert capsys.readouterr().err.startswith(text)
