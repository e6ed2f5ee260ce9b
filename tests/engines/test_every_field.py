"""Every field of a profile with every engine: it changes what is started, or it is refused by name."""

import dataclasses
import sys
from typing import Any

import pytest

from agent_client.engines import LaunchSpec, PlanError, plan
from agent_client.engines.llamacpp import CACHE_TYPES
from agent_client.profile import EngineKind, Profile, SecretRef
from agent_client.profile.memory import kv_width
from agent_client.profile.model_facts import ModelFacts

PROGRAMS: dict[str, tuple[EngineKind, tuple[str, ...]]] = {
    "vllm": (EngineKind.VLLM, ()),
    "sglang": (EngineKind.SGLANG, ()),
    "llama-server": (EngineKind.LLAMACPP, ("llama-server",)),
    "xllamacpp": (EngineKind.LLAMACPP, (sys.executable, "/agent/programs/xllamacpp_server.py")),
    "llama-cpp-python": (EngineKind.LLAMACPP, (sys.executable, "-m", "llama_cpp.server")),
    "echo": (EngineKind.ECHO, ()),
    "custom": (EngineKind.CUSTOM, ()),
}
#: Heeded before an engine is started, by whom.
ELSEWHERE = {
    "engine": "it names the adapter",
    "model_files": "agent_client.weights; preflight refuses it where the node fetches nothing",
    "gpu_class": "placement",
    "gpus": "placement gives so many cards",
    "memory_mib_per_gpu": "placement and preflight",
    "nvlink": "placement",
    "node_selector": "placement",
    "min_compute_capability": "placement",
    "arrangement": "placement",
    "affinity": "placement",
    "anti_affinity": "placement",
    "priority": "placement",
    "preempts": "placement",
    "start_timeout_seconds": "the supervisor",
    "drain_timeout_seconds": "the reconciler",
    "stop_grace_seconds": "the supervisor",
}
LLAMA = ("llama-server", "xllamacpp", "llama-cpp-python")
#: Of one engine, by whom the field is heeded or refused before its adapter.
BEFORE: dict[tuple[str, str], str] = {
    **{(name, "nodes"): "the profile's own rules: it runs on one node" for name in (*LLAMA, "echo", "custom")},
    **{(name, "model_revision"): "the agent, which gives a path; else preflight refuses" for name in LLAMA},
    **{(name, "model_revision"): "the profile's own rules: no hub id" for name in ("echo", "custom")},
    **{(name, f"{k}_parallel"): "cards" for k in ("tensor", "pipeline", "data") for name in ("echo", "custom")},
    ("echo", "model"): "preflight: a path must be there",
    ("custom", "model"): "preflight, and {model} in its command",
}

VALUES: dict[str, Any] = {
    "model": "/models/other",
    "model_revision": "v2",
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "data_parallel": 2,
    "expert_parallel": True,
    "nodes": 2,
    "max_model_len": 4096,
    "gpu_memory_utilization": 0.5,
    "dtype": "float16",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "extra_args": ("--seed", "7"),
    "env": {"A": "1"},
    "options": {"unheard_of": 1},
}


def launched(program: str, **fields: Any) -> tuple[Any, ...]:
    engine, command = PROGRAMS[program]
    if engine is EngineKind.CUSTOM:
        fields["options"] = {"command": ["server"], **fields.get("options", {})}
    profile = Profile(**{"engine": engine, "model": "org/m", **fields})
    nodes = profile.nodes
    made = plan(
        LaunchSpec(
            replica="m/1",
            served_names=("m",),
            profile=profile,
            port=20_000,
            nodes=nodes,
            command=command,
            rendezvous=("10.0.0.1", 29_501) if nodes > 1 else None,
            gpus=("GPU-a", "GPU-b", "GPU-c", "GPU-d")[: profile.gpus_per_node],
        )
    )
    return made.argv, {v.name: v.value for v in made.env if v.name != "CUDA_VISIBLE_DEVICES"}


def test_every_field_is_in_one_of_the_lists() -> None:
    assert {item.name for item in dataclasses.fields(Profile)} == set(ELSEWHERE) | set(VALUES)
    assert not set(ELSEWHERE) & set(VALUES)


@pytest.mark.parametrize(
    ("program", "field"), [(name, field) for name in PROGRAMS for field in VALUES if (name, field) not in BEFORE]
)
def test_a_field_changes_what_is_started_or_is_refused_by_its_name(program: str, field: str) -> None:
    before = launched(program)
    try:
        after = launched(program, **{field: VALUES[field]})
    except PlanError as error:
        (problem,) = error.problems
        assert problem.field.startswith(f"profile.{field}")
        assert problem.text.startswith(f"cannot use {field}")
        assert problem.hint
    else:
        assert after != before


@pytest.mark.parametrize(
    ("program", "field"),
    [
        *((name, field) for name in ("vllm", "sglang") for field in VALUES if field != "options"),
        *((name, "kv_cache_dtype") for name in LLAMA),
    ],
)
def test_what_an_engine_can_do_is_not_refused(program: str, field: str) -> None:
    value = "q8_0" if program not in ("vllm", "sglang") else VALUES[field]
    assert launched(program, **{field: value}) != launched(program)


def test_auto_is_no_wish() -> None:
    assert launched("llama-server", dtype="auto", kv_cache_dtype="auto") == launched("llama-server")


WORDS = [
    ("llama-server", "q8_0", ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]),
    ("llama-server", "bfloat16", ["--cache-type-k", "bf16", "--cache-type-v", "bf16"]),
    ("xllamacpp", "q4_0", ["--cache-type-k", "q4_0", "--cache-type-v", "q4_0"]),
    ("llama-cpp-python", "q8_0", ["--type_k", "8", "--type_v", "8", "--flash_attn", "true"]),
    ("llama-cpp-python", "float16", ["--type_k", "1", "--type_v", "1"]),
]


@pytest.mark.parametrize(("program", "dtype", "words"), WORDS)
def test_llama_cpps_cache_types_have_other_names(program: str, dtype: str, words: list[str]) -> None:
    argv = launched(program, kv_cache_dtype=dtype)[0]
    assert " ".join(words) in " ".join(argv)
    assert ("--flash_attn" in argv) is ("--flash_attn" in words)


def test_cards_share_rows_or_layers_by_what_the_profile_says() -> None:
    assert launched("llama-server", tensor_parallel=2)[0][-2:] == ("--split-mode", "row")
    assert launched("llama-cpp-python", pipeline_parallel=2)[0][-2:] == ("--split_mode", "1")
    with pytest.raises(PlanError, match="beside tensor_parallel"):
        launched("xllamacpp", tensor_parallel=2, pipeline_parallel=2)


def test_a_custom_command_takes_what_it_has_a_place_for() -> None:
    options = {"command": ["server", "--dtype={dtype}", "--len={max_model_len}"]}
    argv = launched("custom", dtype="float16", max_model_len=4096, options=options)[0]
    assert argv == ("server", "--dtype=float16", "--len=4096")
    with pytest.raises(PlanError, match="cannot use quantization = fp8 with a custom engine"):
        launched("custom", quantization="fp8", options=options)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(PlanError) as error:
        launched("llama-server", dtype="float16", gpu_memory_utilization=0.5, kv_cache_dtype="fp8")
    assert [problem.field for problem in error.value.problems] == [
        "profile.dtype",
        "profile.gpu_memory_utilization",
        "profile.kv_cache_dtype",
    ]
    assert "use f32, f16, bf16, q8_0" in error.value.problems[2].hint


def test_the_size_of_every_cache_type_is_known() -> None:
    for name in CACHE_TYPES:
        profile = Profile(engine=EngineKind.LLAMACPP, kv_cache_dtype=name)
        assert kv_width(profile, ModelFacts())
    assert kv_width(Profile(engine=EngineKind.LLAMACPP, kv_cache_dtype="q8_0"), ModelFacts()) == (8.5 / 8, "q8_0")


def test_a_secret_counts_as_an_environment() -> None:
    with pytest.raises(PlanError, match="holds no secret"):
        launched("echo", env={"A": SecretRef(name="s")})
