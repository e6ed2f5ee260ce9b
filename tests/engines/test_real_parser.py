"""The adapter's argument lists and the refusal of words, by vLLM's own parser. LLMGW_TEST_VLLM names its program."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent_client.engines import vllm
from agent_client.engines.options import canonical, refused, table
from tests.engines.test_adapters import launch

VLLM = os.environ.get("LLMGW_TEST_VLLM")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(VLLM is None, reason="LLMGW_TEST_VLLM does not name a vllm program"),
]


def parsed(lists: list[list[str]]) -> dict[str, Any]:
    python = Path(str(VLLM)).parent / "python"
    script = Path(__file__).with_name("real_parser.py")
    done = subprocess.run(
        [str(python), str(script)], input=json.dumps(lists), capture_output=True, text=True, check=True, timeout=280
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_takes_every_list_that_the_adapter_makes() -> None:
    chance = random.Random(7)
    lists = []
    for _ in range(60):
        nodes = chance.choice([1, 2])
        fields: dict[str, Any] = {
            "tensor_parallel": chance.choice([2, 4]),
            "pipeline_parallel": chance.choice([1, 2]),
            "data_parallel": chance.choice([1, 2]),
            "expert_parallel": chance.random() < 0.5,
            "max_model_len": chance.choice([None, 1, 131_072]),
            "gpu_memory_utilization": chance.choice([None, 0.01, 1]),
            "dtype": chance.choice([None, "auto", "bfloat16"]),
            "quantization": chance.choice([None, "fp8"]),
            "kv_cache_dtype": chance.choice([None, "fp8"]),
        }
        for rank in range(nodes):
            argv = launch("vllm", nodes=nodes, rank=rank, rendezvous=("10.0.0.1", 29_501), **fields).argv
            lists.append(list(argv[2:]))
    assert None not in parsed(lists)["changed"]


def test_no_word_that_changes_an_owned_option_passes() -> None:
    chance = random.Random(7)
    known = table("vllm")
    owned = {canonical(name) for name in vllm.OWNED_FLAGS}
    near = sorted(name for name, option in known.by_name.items() if known.by_name[name] and option.name in owned)
    words = []
    for _ in range(1_500):
        name = chance.choice(near if chance.random() < 0.7 else sorted(known.by_name))
        name = name[: chance.randint(2, len(name))]
        if chance.random() < 0.3:
            name = name[:2] + name[2:].replace("-", "_")
        words.append(chance.choice([[f"{name}=2"], [f"{name}2"], [name, "2"], [name]]))
    answer = parsed([["m", *given] for given in words])
    options = {canonical(name): dest for name, dest in answer["options"].items()}
    dests = {options[name] for name in owned}
    reached = [
        given for given, changed in zip(words, answer["changed"], strict=True) if changed and dests & set(changed)
    ]
    assert len(reached) > 100
    assert [given for given in reached if not list(refused(given, known, vllm.OWNED_FLAGS))] == []
