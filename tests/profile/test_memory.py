"""The estimate's parts: published sizes of caches, and how they are divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.profile import parse_profile
from agent_client.profile.config_json import facts_of_config
from agent_client.profile.memory import ACTIVATIONS_BYTES, GIB, GRAPHS_BYTES, estimate, kv_cache
from agent_client.profile.model_facts import ModelFacts
from tests.profile.models import MODELS, facts_of, subject

#: Bytes a token on one GPU with TP 1, bytes a token inside the window, fixed bytes a sequence, bytes a token with TP 8.
CACHES = {
    "Qwen/Qwen3-0.6B": (2 * 28 * 8 * 128 * 2, 0, 0, 14_336),
    "Qwen/Qwen3-8B": (2 * 36 * 8 * 128 * 2, 0, 0, 18_432),
    "Qwen/Qwen3-32B": (2 * 64 * 8 * 128 * 2, 0, 0, 32_768),
    "Qwen/Qwen3-32B-FP8": (2 * 64 * 8 * 128 * 2, 0, 0, 32_768),
    "Qwen/Qwen3-30B-A3B": (2 * 48 * 4 * 128 * 2, 0, 0, 24_576),  # 4 heads on 8 GPUs: each holds one
    "Qwen/Qwen3-30B-A3B-FP8": (2 * 48 * 4 * 128 * 2, 0, 0, 24_576),
    "Qwen/Qwen3-235B-A22B": (2 * 94 * 4 * 128 * 2, 0, 0, 48_128),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (2 * 62 * 8 * 128 * 2, 0, 0, 31_744),
    "Qwen/Qwen3.5-27B": (2 * 16 * 4 * 256 * 2, 0, 48 * (3 * 10_240 + 48 * 128 * 128) * 2, 16_384),
    "Qwen/Qwen3-VL-8B-Instruct": (2 * 36 * 8 * 128 * 2, 0, 0, 18_432),
    "deepseek-ai/DeepSeek-V3": (70_272, 0, 0, 70_272),
    "deepseek-ai/DeepSeek-R1": (70_272, 0, 0, 70_272),
    "deepseek-ai/DeepSeek-V3.2": (70_272 + 61 * 132, 0, 0, 70_272 + 61 * 132),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (2 * 12 * 8 * 128 * 2, 2 * 36 * 8 * 128 * 2, 0, 6_144),
    "meta-llama/Meta-Llama-3.1-405B": (2 * 126 * 8 * 128 * 2, 0, 0, 64_512),
    "meta-llama/Meta-Llama-3.1-70B": (327_680, 0, 0, 40_960),
    "meta-llama/Meta-Llama-3.1-8B": (131_072, 0, 0, 16_384),
    "mistralai/Mixtral-8x7B-v0.1": (131_072, 0, 0, 16_384),
    "nvidia/Llama-3.1-70B-Instruct-FP8": (163_840, 0, 0, 20_480),  # made for an fp8 cache
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        2 * 6 * 2 * 128 * 2,
        0,
        23 * (3 * (4096 + 2 * 8 * 128) * 2 + 64 * 64 * 128 * 4),
        3_072,
    ),
    "openai/gpt-oss-20b": (2 * 12 * 8 * 64 * 2, 2 * 12 * 8 * 64 * 2, 0, 3_072),
    "zai-org/GLM-5": (78 * (576 * 2 + 132), 0, 0, 78 * (576 * 2 + 132)),
    "MiniMaxAI/MiniMax-M2.5": (2 * 62 * 8 * 128 * 2, 0, 0, 31_744),
    "moonshotai/Kimi-K2-Instruct": (70_272, 0, 0, 70_272),
    "Qwen/Qwen2-0.5B-Instruct": (2 * 24 * 2 * 64 * 2, 0, 0, 6_144),
    "Qwen/Qwen2.5-7B-Instruct": (2 * 28 * 4 * 128 * 2, 0, 0, 14_336),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": (2 * 80 * 8 * 128 * 2, 0, 0, 40_960),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_of_27_models(name: str) -> None:
    one, eight = (kv_cache(subject(name, tensor_parallel=tp).profile, facts_of(name)) for tp in (1, 8))
    assert one is not None
    assert eight is not None
    found = (one.token_bytes, one.window_token_bytes, one.sequence_bytes, eight.token_bytes)
    assert found == CACHES[name]


def cache(name: str, **fields: object) -> int:
    found = kv_cache(subject(name, **fields).profile, facts_of(name))
    assert found is not None
    return found.token_bytes


def test_the_cache_by_dtype_and_stages() -> None:
    assert cache("meta-llama/Meta-Llama-3.1-8B", kv_cache_dtype="fp8") == 65_536
    assert cache("meta-llama/Meta-Llama-3.1-8B", dtype="float32") == 262_144
    assert cache("meta-llama/Meta-Llama-3.1-8B", pipeline_parallel=3) == 131_072 // 32 * 11  # the fullest stage
    assert cache("deepseek-ai/DeepSeek-V3.2", kv_cache_dtype="fp8") == 61 * (656 + 132)
    assert cache("deepseek-ai/DeepSeek-V3", kv_cache_dtype="fp8") == 35_136
    profile = subject("Qwen/Qwen3-8B", kv_cache_dtype="turboquant_k8v4").profile
    assert kv_cache(profile, facts_of("Qwen/Qwen3-8B")) is None  # its size is not known here


def test_a_window_ends_the_growth() -> None:
    found = kv_cache(subject("openai/gpt-oss-20b").profile, facts_of("openai/gpt-oss-20b"))
    assert found is not None
    assert found.bytes_for(1000) == 1000 * 2 * 24_576
    assert found.bytes_for(100_000) == 100_000 * 24_576 + (128 - 1 + 2048) * 24_576


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 10**12))
def test_the_longest_context_is_the_longest(name: str, room: int) -> None:
    found = kv_cache(subject(name).profile, facts_of(name))
    assert found is not None
    most = found.most_context(room)
    assert most == 0 or found.bytes_for(most) <= room
    assert found.bytes_for(most + 1) > room


def weights(name: str, **fields: object) -> float:
    size = estimate(subject(name, **fields).profile, facts_of(name)).weights
    assert size is not None
    return size / GIB


def test_the_weights_are_divided_and_changed_as_the_profile_says() -> None:
    name = "meta-llama/Meta-Llama-3.1-70B"
    assert weights(name) == pytest.approx(131.42, abs=0.01)
    assert weights(name, tensor_parallel=4, pipeline_parallel=2) == pytest.approx(131.42 / 8, abs=0.01)
    assert weights(name, quantization="fp8") == pytest.approx(131.42 / 2 + 1.96, abs=0.1)  # embeddings stay
    assert weights(name, dtype="float32") == pytest.approx(2 * 131.42, abs=0.01)
    assert weights(name, data_parallel=2) == pytest.approx(131.42, abs=0.01)  # each copy is whole


def test_experts_are_spread_over_data_parallel_ranks_too() -> None:
    name = "deepseek-ai/DeepSeek-R1"
    alone = weights(name, tensor_parallel=8)
    spread = weights(name, tensor_parallel=8, data_parallel=2, expert_parallel=True)
    assert alone == pytest.approx(641.3 / 8, abs=0.1)
    assert alone / 2 < spread < alone * 0.55
    assert weights(name, tensor_parallel=8, data_parallel=2) == alone


def test_a_model_of_float32_is_loaded_as_16_bits() -> None:
    config = {"torch_dtype": "float32", "num_hidden_layers": 1}
    facts = facts_of_config(config, weights_bytes=1000)
    made = estimate(parse_profile({"engine": "vllm", "model": "m"}), facts)
    assert made.weights == 500


def test_parts_are_shown_and_what_is_not_known_is_not_zero() -> None:
    profile = parse_profile({"engine": "vllm", "model": "m", "max_model_len": 10})
    made = estimate(profile, ModelFacts())
    assert [part.bytes for part in made.parts] == [None, None, ACTIVATIONS_BYTES, GRAPHS_BYTES]
    assert made.parts[0].shown == "unknown"
    assert made.total is None
    assert made.least is None
    small = subject("Qwen/Qwen3-0.6B").profile  # a width of 1024
    assert estimate(small, facts_of("Qwen/Qwen3-0.6B")).parts[2].bytes == ACTIVATIONS_BYTES // 4
    for fields in ({"engine": "llamacpp"}, {"engine": "vllm", "gpus": 0}):  # nothing was reported for these
        made = estimate(parse_profile({"model": "m", **fields}), ModelFacts())
        assert made.parts[2].bytes is None
        assert made.parts[3].bytes == (0 if "gpus" in fields else None)
    whole = estimate(subject("Qwen/Qwen3-8B", extra_args=["--enforce-eager"]).profile, facts_of("Qwen/Qwen3-8B"))
    assert whole.total == sum(part.bytes or 0 for part in whole.parts)
    assert whole.parts[3].bytes == 0
    assert whole.parts[0].how == "15.26 GiB (files) / (TP 1 x PP 1)"
    assert whole.parts[1].how == "2 x 36 layers x 8 KV heads x 128 x 2 bytes (bfloat16); 40960 tokens"
