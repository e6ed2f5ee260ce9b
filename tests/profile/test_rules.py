"""Each rule by the numbers: what vLLM and SGLang refuse, and nothing else."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.rules import RULES, floor_bytes, judge
from agent_client.profile.shapes import fitting_tensor_parallel
from agent_client.profile.subject import Card, Subject
from tests.profile.models import H100, MODELS, T4, facts_of, subject

POWERS = (1, 2, 4, 8, 16, 32, 64)
#: Sizes of tensor_parallel that vLLM and SGLang take, up to 64.
SIZES = {
    "Qwen/Qwen3-0.6B": (POWERS[:5], POWERS[:5]),
    "Qwen/Qwen3-8B": (POWERS[:6], POWERS[:6]),
    "Qwen/Qwen3-32B": (POWERS, POWERS),
    "Qwen/Qwen3-32B-FP8": (POWERS[:4], POWERS[:4]),  # 25600 / 16 = 1600 is no multiple of 128
    "Qwen/Qwen3-30B-A3B": (POWERS[:6], POWERS[:6]),
    "Qwen/Qwen3-30B-A3B-FP8": (POWERS[:6], POWERS[:2]),  # 768 / 4 = 192: vLLM 0.32 refines the blocks
    "Qwen/Qwen3-235B-A22B": (POWERS, POWERS),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (POWERS[:6], POWERS[:6]),
    "Qwen/Qwen3.5-27B": (POWERS[:4], POWERS[:4]),
    "Qwen/Qwen3-VL-8B-Instruct": (POWERS[:6], POWERS[:6]),
    "deepseek-ai/DeepSeek-V3": (POWERS[:5], POWERS[:5]),  # a shared expert of 2048: 2048 / 32 = 64
    "deepseek-ai/DeepSeek-R1": (POWERS[:5], POWERS[:5]),
    "deepseek-ai/DeepSeek-V3.2": (POWERS[:5], POWERS[:5]),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (POWERS[:4], POWERS[:4]),
    "meta-llama/Meta-Llama-3.1-405B": (POWERS, POWERS),
    "meta-llama/Meta-Llama-3.1-70B": (POWERS, POWERS),
    "meta-llama/Meta-Llama-3.1-8B": (POWERS[:6], POWERS[:6]),
    "mistralai/Mixtral-8x7B-v0.1": (POWERS[:6], POWERS[:6]),
    "nvidia/Llama-3.1-70B-Instruct-FP8": (POWERS, POWERS),  # one scale a tensor: no blocks
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (POWERS[:6], POWERS[:6]),
    "openai/gpt-oss-20b": (POWERS, POWERS),
    "zai-org/GLM-5": (POWERS, POWERS),
    "MiniMaxAI/MiniMax-M2.5": ((1, 2, 4, 8, 16, 24, 48), POWERS[:3]),
    "moonshotai/Kimi-K2-Instruct": (POWERS[:5], POWERS[:5]),
    "Qwen/Qwen2-0.5B-Instruct": (POWERS[:2], POWERS[:2]),  # 14 heads
    "Qwen/Qwen2.5-7B-Instruct": (POWERS[:3], POWERS[:3]),  # 28 heads, 4 KV heads
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": (POWERS[:1], POWERS),  # 29568 / 2 is no multiple of 128
}


@pytest.mark.parametrize("name", MODELS)
def test_the_tensor_parallel_sizes_that_27_models_take(name: str) -> None:
    found = tuple(fitting_tensor_parallel(subject(name, engine=engine)) for engine in ("vllm", "sglang"))
    assert found == SIZES[name]


def check(code: str, text: str, name: str, *cards: Card, **fields: Any) -> None:
    found = judge(subject(name, *cards, **fields)).problems
    assert [problem.code for problem in found][:1] == [code], found
    assert text in found[0].text
    assert found[0].text.startswith(f"cannot run {name}: ")
    assert found[0].hint


QWEN7, QWEN8, FP8 = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B-FP8"
MOE8, LLAMA8, LLAMA70 = "Qwen/Qwen3-30B-A3B-FP8", "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B"
GPTQ, OSS, R1 = "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-R1"
SMALL = Card(name="L4", capability=(8, 9), memory_total_mib=23_034)
V100 = Card(name="Tesla V100", capability=(7, 0), memory_total_mib=16_384)
BUSY = Card(name="H200", capability=(9, 0), memory_total_mib=143_073, memory_free_mib=7_516)

#: Wrong profiles: code, the number that is wrong, model, cards, profile.
WRONG: list[tuple[str, str, str, list[Card], dict[str, Any]]] = [
    ("heads_not_divisible", "28 attention heads do not divide by tensor_parallel 8", QWEN7, [], {"tensor_parallel": 8}),
    ("kv_heads_not_divisible", "4 KV heads do not divide tensor_parallel 14", QWEN7, [], {"tensor_parallel": 14}),
    ("heads_not_divisible", "32 attention heads", QWEN8, [], {"tensor_parallel": 3}),
    ("block_not_divisible", "a GPU has 1600 of its MLP width", FP8, [], {"tensor_parallel": 16}),
    ("block_not_divisible", "192 of its expert width", MOE8, [], {"engine": "sglang", "tensor_parallel": 4}),
    (
        "block_not_divisible",
        "192 of its expert width",
        MOE8,
        [],
        {"tensor_parallel": 4, "engine_version": (0, 31)},
    ),
    ("block_not_divisible", "14784 of its MLP width", GPTQ, [], {"tensor_parallel": 2}),
    ("block_not_divisible", "576 of its MLP width", R1, [], {"tensor_parallel": 32}),
    ("too_many_stages", "pipeline_parallel 40 is more than its 36 layers", QWEN8, [], {"pipeline_parallel": 40}),
    ("no_experts", "it has no experts", QWEN8, [], {"expert_parallel": True}),
    (
        "experts_not_divisible",
        "32 experts",
        OSS,
        [],
        {"engine": "sglang", "tensor_parallel": 64, "expert_parallel": True},
    ),
    ("context_exceeds_model", "max_model_len 131072 is above the model's 40960", QWEN8, [], {"max_model_len": 131_072}),
    ("context_exceeds_model", "32769", QWEN7, [], {"engine": "sglang", "max_model_len": 32_769}),
    (
        "context_exceeds_model",
        "max_model_len 999999 is above the model's 40960",
        QWEN8,
        [],
        {"engine": "llamacpp", "max_model_len": 999_999},
    ),
    ("dtype_unsupported", "needs compute capability 8.0, Tesla T4 has 7.5", QWEN8, [T4], {"dtype": "bfloat16"}),
    ("dtype_unknown", "no dtype bf16", QWEN8, [], {"dtype": "bf16"}),
    ("quantization_unknown", "no quantization wizquant", QWEN8, [], {"quantization": "wizquant"}),
    ("quantization_differs", "stored as gptq, quantization fp8 can't", GPTQ, [], {"quantization": "fp8"}),
    ("quantization_unsupported", "fp8 needs compute capability 7.5, Tesla V100 has 7.0", FP8, [V100], {}),
    ("quantization_unsupported", "mxfp4 needs compute capability 8.0", OSS, [T4], {"engine": "vllm"}),
    ("quantization_unsupported", "needs compute capability 8.0", FP8, [T4], {"engine": "sglang"}),
    ("capability_too_low", "SGLang needs compute capability 7.5", QWEN8, [V100], {"engine": "sglang"}),
    ("kv_cache_dtype_unknown", "no kv_cache_dtype fp9", QWEN8, [], {"kv_cache_dtype": "fp9"}),
    ("memory_weights", "weights take 131.4 GiB of each GPU, 73.3 of 79.6 GiB", LLAMA70, [H100], {}),
    ("memory_weights", "weights take 15.0 GiB of each GPU", LLAMA8, [T4], {"dtype": "float16"}),
    ("memory_context", "one request of 131072 tokens needs 16.0 GiB of KV cache", LLAMA8, [SMALL], {}),
    (
        "memory_share",
        "a share of 0.3 of the card's 79.6 GiB is 23.9 GiB, and weights and the smallest cache need 31.0 GiB",
        LLAMA8,
        [H100],
        {"gpu_memory_utilization": 0.3},
    ),
    (
        "memory_share",
        "a share of 0.1 of the card's 79.6 GiB is 8.0 GiB, and the weights alone need 15.0 GiB",
        LLAMA8,
        [H100],
        {"engine": "sglang", "gpu_memory_utilization": 0.1},
    ),
    ("memory_weights", "weights take 131.4 GiB of each GPU", LLAMA70, [H100], {"gpu_memory_utilization": 0.3}),
    ("memory_taken", "7.3 of 139.7 GiB are free on H200", QWEN8, [BUSY], {"gpu_memory_utilization": 0.9}),
    ("memory_taken", "7.3 of 139.7 GiB are free on H200, its weights take 15.3", QWEN8, [BUSY], {"engine": "sglang"}),
    (
        "nodes_not_divisible",
        "does not divide by 3 nodes",
        QWEN8,
        [],
        {"engine": "sglang", "nodes": 3, "data_parallel": 3},
    ),
    (
        "data_parallel_over_nodes",
        "no data_parallel 2 over 2 nodes",
        QWEN8,
        [],
        {"engine": "sglang", "nodes": 2, "tensor_parallel": 2, "data_parallel": 2},
    ),
    ("name_unsupported", "it must have no colon", QWEN8, [], {"engine": "sglang", "served_names": ("a:b",)}),
    ("shm_too_small", "64 MiB are free in /dev/shm", QWEN8, [], {"tensor_parallel": 2, "shm_free_mib": 64}),
]


@pytest.mark.parametrize(
    ("code", "text", "name", "cards", "fields"), WRONG, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_wrong_profile_is_refused_at_once_with_the_number(
    code: str, text: str, name: str, cards: list[Card], fields: dict[str, Any]
) -> None:
    begin = time.perf_counter()
    check(code, text, name, *cards, **fields)
    assert time.perf_counter() - begin < 1


RIGHT: list[tuple[str, list[Card], dict[str, Any]]] = [
    (QWEN7, [H100], {"tensor_parallel": 4}),
    (QWEN8, [H100], {"max_model_len": 131_072, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}),
    (QWEN8, [T4] * 2, {"tensor_parallel": 2, "dtype": "float16", "max_model_len": 8192}),
    (QWEN8, [T4] * 2, {"tensor_parallel": 2, "max_model_len": 8192}),  # auto falls back to float16
    (MOE8, [H100] * 4, {"tensor_parallel": 4}),
    (MOE8, [H100] * 4, {"tensor_parallel": 4, "expert_parallel": True, "engine_version": (0, 31)}),
    (MOE8, [H100] * 4, {"engine": "sglang", "tensor_parallel": 4, "expert_parallel": True}),
    (FP8, [T4] * 8, {"tensor_parallel": 8, "max_model_len": 8192}),  # weights-only fp8 below 8.9
    (OSS, [H100], {}),
    (GPTQ, [H100], {"max_model_len": 16_384}),
    (GPTQ, [H100], {"quantization": "gptq_marlin"}),
    (LLAMA70, [H100] * 2, {"tensor_parallel": 2, "max_model_len": 8192}),
    (LLAMA70, [H100], {"extra_args": ["--cpu-offload-gb=80"], "max_model_len": 8192}),
    (LLAMA8, [SMALL], {"max_model_len": 32_768}),
    (LLAMA8, [SMALL], {"engine": "sglang"}),  # it goes on with less cache than one request
    (R1, [H100] * 16, {"tensor_parallel": 16, "nodes": 2}),
    (QWEN8, [], {"quantization": "what-comes-next", "engine_version": (0, 40)}),
    (QWEN8, [BUSY], {"tensor_parallel": 4, "engine": "sglang"}),  # it takes what is free
    (LLAMA70, [T4], {"engine": "llamacpp"}),
    (QWEN8, [], {"engine": "llamacpp", "max_model_len": 131_072, "extra_args": ["--rope-scaling", "yarn"]}),
    (QWEN8, [], {"engine": "llamacpp", "max_model_len": 131_072, "extra_args": ["--yarn_orig_ctx=40960"]}),
    (LLAMA70, [T4], {"gpus": 0}),
]


@pytest.mark.parametrize(("name", "cards", "fields"), RIGHT)
def test_what_the_engines_take_is_not_refused(name: str, cards: list[Card], fields: dict[str, Any]) -> None:
    assert judge(subject(name, *cards, **fields)).problems == ()


def test_hints_name_sizes_that_every_rule_allows() -> None:
    (problem,) = judge(subject(QWEN7, tensor_parallel=8)).problems
    assert problem.hint == "tensor_parallel that fit: 1, 2, 4"
    large = judge(subject("Qwen/Qwen3-235B-A22B", *[H100] * 4, tensor_parallel=4)).problems
    assert large[0].hint.startswith("set tensor_parallel to 8 or more")


def test_a_refusal_of_memory_names_a_context_that_fits() -> None:
    (problem,) = judge(subject(LLAMA8, SMALL)).problems
    most = int(problem.hint.split("max_model_len to ")[1].split(" ")[0])
    assert judge(subject(LLAMA8, SMALL, max_model_len=most)).ok
    assert not judge(subject(LLAMA8, SMALL, max_model_len=most + 1)).ok


def test_of_different_cards_the_oldest_and_smallest_decide() -> None:
    found = judge(subject(QWEN8, H100, T4, tensor_parallel=2, dtype="bfloat16")).problems
    assert "Tesla T4 has 7.5" in found[0].text
    unknown = Card(name="?")
    assert judge(subject(LLAMA70, H100, unknown, tensor_parallel=2)).ok  # a card that is not known decides nothing


def test_every_rule_says_where_it_comes_from() -> None:
    assert all(rule.__doc__ and len(rule.__doc__) > 40 for rule in RULES)


NUMBER = st.none() | st.integers(1, 200_000)


@given(
    st.builds(
        ModelFacts,
        **dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary"), NUMBER),
        **dict.fromkeys(("context", "experts", "moe_intermediate", "full_layers", "weights_bytes"), NUMBER),
        moe_layers=st.none() | st.integers(0, 99),
        dense_layers=st.none() | st.integers(0, 99),
        quantization=st.sampled_from([facts_of(name).quantization for name in MODELS]),
        mla=st.sampled_from([None, facts_of(R1).mla]),
    ),
    st.sampled_from(["vllm", "sglang"]),
    st.integers(1, 64),
    st.integers(1, 8),
    st.sampled_from([(), (H100,), (T4, BUSY), (Card(),)]),
)
def test_gaps_in_the_facts_make_no_problem_and_no_error(
    facts: ModelFacts, engine: str, tp: int, pp: int, cards: tuple[Card, ...]
) -> None:
    fields = {"engine": engine, "tensor_parallel": tp, "pipeline_parallel": pp, "expert_parallel": True}
    base = subject(QWEN8, **fields)
    judge(Subject(profile=base.profile, facts=facts, cards=cards))
    assert judge(Subject(profile=base.profile, facts=ModelFacts(), cards=())).problems == ()


def test_the_share_that_is_told_would_do() -> None:
    low: dict[str, Any] = {"gpu_memory_utilization": 0.3}
    (problem,) = judge(subject(LLAMA8, H100, **low)).problems
    assert problem.field == "profile.gpu_memory_utilization"
    assert problem.hint == "set gpu_memory_utilization to 0.42 or more, or max_model_len to 73209 or less"
    raised = judge(subject(LLAMA8, H100, gpu_memory_utilization=0.42))
    assert (raised.problems, raised.warnings) == ((), ())
    assert judge(subject(LLAMA8, H100, max_model_len=73_209, **low)).ok
    assert not judge(subject(LLAMA8, H100, max_model_len=73_210, **low)).ok
    assert judge(subject(LLAMA8, H100, extra_args=["--cpu-offload-gb", "40"], **low)).ok


@given(st.sampled_from(["vllm", "sglang"]), st.floats(0.01, 0.95), st.sampled_from([1, 2, 4]))
def test_a_share_is_refused_below_its_floor_and_nowhere_else(engine: str, share: float, tp: int) -> None:
    on = subject(LLAMA8, *[H100] * tp, engine=engine, tensor_parallel=tp, gpu_memory_utilization=share)
    found, floor = judge(on), floor_bytes(on)
    assert floor is not None
    refused = "memory_share" in {problem.code for problem in found.problems}
    assert refused == (floor > found.estimate.budget(H100.memory_total_mib or 0))
    assert found.ok != refused


def test_parts_that_sum_to_more_than_may_be_used_are_a_warning_and_refuse_nothing() -> None:
    card = Card(name="A100", capability=(8, 0), memory_total_mib=40_960)
    tight = judge(subject(LLAMA8, *[card] * 4, tensor_parallel=4, gpu_memory_utilization=0.12, max_model_len=4096))
    assert tight.ok
    (warning,) = tight.warnings
    assert warning.code == "memory_tight"
    assert "activations 1.40 GiB, CUDA graphs 0.95 GiB), 4.8 of 40.0 GiB may be used" in warning.text
    assert judge(subject(LLAMA8, *[card] * 4, tensor_parallel=4, max_model_len=4096)).warnings == ()
    refused = judge(subject(LLAMA8, *[card] * 4, tensor_parallel=4, gpu_memory_utilization=0.05))
    assert not refused.ok
    assert refused.warnings == ()
