"""Facts out of config.json, safetensors index and GGUF header; whatever stands in them, nothing is invented."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.profile.config_json import facts_of_config
from agent_client.profile.gguf import TYPES, facts_of_gguf, read_header
from agent_client.profile.model_facts import MOST_CONFIG_BYTES, FactsError, ModelFacts, read_index, read_json
from agent_client.profile.parameters import estimated_weights_bytes, parameters
from tests.profile.models import MODELS, config_of, facts_of
from tests.support import tiny_gguf


@pytest.mark.parametrize("name", MODELS)
def test_the_parameters_of_27_models_follow_from_their_shapes(name: str) -> None:
    count = parameters(facts_of(name))
    assert count is not None
    slack = 0.07 if name.endswith("VL-8B-Instruct") else 0.036  # vision parts are not described in text_config
    assert MODELS[name]["parameters"] * (1 - slack) <= count.total <= MODELS[name]["parameters"] * 1.001


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_of_27_models_are_estimated_where_the_files_are_not_there(name: str) -> None:
    size = estimated_weights_bytes(facts_of(name, with_files=False))
    assert size is not None
    assert 0.93 <= size / MODELS[name]["tensor_bytes"] <= 1.005


LAYERS = {  # full, windowed, linear, window
    "Qwen/Qwen3.5-27B": (16, 0, 48, None),
    "openai/gpt-oss-20b": (12, 12, 0, 128),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (12, 36, 0, 8192),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (6, 0, 23, None),
    "Qwen/Qwen3-8B": (36, 0, 0, None),
    "mistralai/Mixtral-8x7B-v0.1": (32, 0, 0, None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_kinds_of_layers_are_counted(name: str) -> None:
    facts = facts_of(name)
    assert (facts.full_layers, facts.window_layers, facts.linear_layers, facts.window) == LAYERS[name]


@pytest.mark.parametrize(
    ("config", "full", "windowed", "linear"),
    [
        ({"sliding_window": 4096}, 0, 24, 0),
        ({"sliding_window": 4096, "use_sliding_window": False}, 24, 0, 0),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20}, 20, 4, 0),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 4, 20, 0),
        ({"sliding_window": 4096, "model_type": "gemma2"}, 12, 12, 0),
        ({"attention_chunk_size": 8192, "no_rope_layers": [1, 1, 0] * 8}, 8, 16, 0),
        ({"full_attention_interval": 4}, 6, 0, 18),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, 3, 0, 21),
        ({"attn_type_list": [0, 0, 1] * 8}, 8, 0, 16),
        ({"layer_types": ["full_attention", "what is this"]}, None, None, None),
    ],
)
def test_each_family_says_in_its_own_way_which_layers_have_a_window(
    config: dict[str, Any], full: int | None, windowed: int | None, linear: int | None
) -> None:
    facts = facts_of_config({"num_hidden_layers": 24, **config})
    assert (facts.full_layers, facts.window_layers, facts.linear_layers) == (full, windowed, linear)


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        (None, 32768),
        ({"type": "linear", "factor": 4.0}, 131072),
        ({"rope_type": "dynamic", "factor": 2}, 65536),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "llama3", "factor": 8.0}, 32768),
        ({"rope_type": "linear", "factor": None}, 32768),
        ({"rope_type": "linear", "factor": float("nan")}, 32768),
        ("nonsense", 32768),
    ],
)
def test_the_context_is_what_the_engine_derives(rope: object, context: int) -> None:
    assert facts_of_config({"max_position_embeddings": 32768, "rope_scaling": rope}).context == context


def test_head_dim_is_the_models_own_where_it_says_so() -> None:
    assert facts_of("Qwen/Qwen3-32B").head_dim == 128
    assert facts_of("meta-llama/Meta-Llama-3.1-8B").head_dim == 128
    assert facts_of_config({"hidden_size": 100, "num_attention_heads": 7}).head_dim is None


def test_how_weights_are_stored_is_read_in_every_form() -> None:
    stored = {name: facts_of(name).quantization for name in MODELS}
    assert stored["Qwen/Qwen3-8B"] is None
    block = stored["Qwen/Qwen3-32B-FP8"]
    assert block is not None
    assert (block.method, block.block) == ("fp8", (128, 128))
    modelopt = stored["nvidia/Llama-3.1-70B-Instruct-FP8"]
    assert modelopt is not None
    assert (modelopt.method, modelopt.algorithm, modelopt.kv_cache) == ("modelopt", "FP8", "fp8")
    weights = {"num_bits": 4, "type": "int", "group_size": 128}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    packed["config_groups"] = {"group_0": {"weights": weights, "input_activations": {"num_bits": 8}}}
    found = facts_of_config({"quantization_config": packed}).quantization
    assert found is not None
    assert (found.algorithm, found.bits, found.group_size) == ("W4A8 pack-quantized", 4, 128)


def test_code_of_a_models_own_is_noticed_and_not_run() -> None:
    assert facts_of_config({"auto_map": {"AutoModel": "modeling.Evil"}}).remote_code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = sorted({key for name in MODELS for key in (*config_of(name), *config_of(name).get("text_config", {}))})


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=12), st.sampled_from(sorted(MODELS)))
def test_any_config_gives_facts_or_gaps_and_no_error(changes: dict[str, Any], name: str) -> None:
    for config in (changes, config_of(name) | changes):
        facts = facts_of_config(config)
        assert isinstance(facts, ModelFacts)
        estimated_weights_bytes(facts)
        sizes = (facts.layers, facts.heads, facts.kv_heads, facts.head_dim, facts.vocabulary, facts.context)
        assert all(size is None or size > 0 for size in sizes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "list"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "not valid JSON"),
        (b" " * (MOST_CONFIG_BYTES + 1), "at most are read"),
    ],
)
def test_what_is_no_config_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(FactsError, match=why):
        read_json(data, "config.json")


def test_an_index_tells_files_and_bytes_and_may_not_leave_the_folder() -> None:
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = read_index(json.dumps({"metadata": {"total_size": 5000}, "weight_map": weights}).encode())
    assert (index.total_bytes, index.files) == (5000, tuple(sorted(weights.values())))
    assert read_index(json.dumps({"weight_map": weights}).encode()).total_bytes is None
    for bad in ("/etc/passwd", "../x.safetensors", "a/../../b", "a\x00b"):
        with pytest.raises(FactsError, match="no file of the model's folder"):
            read_index(json.dumps({"weight_map": {"a": bad}}).encode())
    for nothing in ({}, {"weight_map": []}, {"weight_map": {"a": 1}}):
        with pytest.raises(FactsError):
            read_index(json.dumps(nothing).encode())


# --- GGUF ---------------------------------------------------------------------------------------------------------


def test_the_sizes_of_tensor_types_are_those_of_the_gguf_package() -> None:
    for number, (name, block, width) in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (block, width))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tiny_gguf.write(str(path))
    return path


def test_a_gguf_header_gives_the_same_facts_without_reading_weights(tiny: Path) -> None:
    data = tiny.read_bytes()
    header = read_header(data[: len(data) // 8])
    facts = facts_of_gguf(header)
    assert (facts.architecture, facts.layers, facts.hidden, facts.heads) == ("llama", 2, 64, 4)
    assert (facts.kv_heads, facts.head_dim, facts.context, facts.vocabulary) == (4, 16, 2048, 259)
    assert facts.weights_bytes == header.parameters * 4
    assert len(data) - header.header_bytes - 64 <= header.tensor_bytes <= len(data) - header.header_bytes


def test_layers_with_different_heads_count_by_the_largest(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "x.gguf"), "gemma")
    writer.add_block_count(3)
    writer.add_head_count([8, 16, 8])
    writer.add_head_count_kv([2, 4, 2])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    facts = facts_of_gguf(read_header((tmp_path / "x.gguf").read_bytes()))
    assert (facts.heads, facts.kv_heads) == (16, 4)


@pytest.mark.parametrize(
    ("architecture", "window", "pattern", "layers"),
    [
        ("gemma3", 1024, None, (4, 22, 1024)),
        ("gpt-oss", 128, None, (13, 13, 128)),
        ("gemma2", 4096, 4, (6, 20, 4096)),
        ("exaone4", 4096, [True, True, True, False], (6, 20, 4096)),
        ("gpt-oss", 128, 0, (0, 26, 128)),
        ("phi3", 2047, None, (26, 0, None)),  # llama.cpp gives it no window
        ("llama4", None, None, (6, 20, 8192)),
        ("llama4", 0, None, (26, 0, None)),
        ("llama", None, None, (26, 0, None)),
        ("what-comes-next", 512, None, (None, None, 512)),
    ],
)
def test_which_layers_of_a_gguf_have_a_window(
    tmp_path: Path, architecture: str, window: int | None, pattern: Any, layers: tuple[int | None, ...]
) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "x.gguf"), architecture)
    writer.add_block_count(26)
    if window is not None:
        writer.add_sliding_window(window)
    if isinstance(pattern, list):
        writer.add_array(f"{architecture}.attention.sliding_window_pattern", pattern)
    elif pattern is not None:
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", pattern)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    facts = facts_of_gguf(read_header((tmp_path / "x.gguf").read_bytes()))
    assert (facts.full_layers, facts.window_layers, facts.window) == layers


def test_a_gguf_file_is_as_long_as_its_header_says(tiny: Path) -> None:
    assert read_header(tiny.read_bytes()).file_bytes == tiny.stat().st_size


def test_a_cut_header_is_refused_at_every_byte(tiny: Path) -> None:
    data = tiny.read_bytes()
    whole = read_header(data).header_bytes
    for cut in range(0, whole, 7):
        with pytest.raises(FactsError):
            read_header(data[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04" + b"\x00" * 40,
        b"GGUF" + struct.pack("<I", 9) + b"\x00" * 40,
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63),
        b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**40),
    ],
)
def test_a_header_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(FactsError):
        read_header(data)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_are_a_header_or_refused(noise: bytes, at: int) -> None:
    start = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    for data in (noise, start + noise, (start + b"\x00" * 200)[:at] + noise):
        try:
            facts_of_gguf(read_header(data))
        except FactsError:
            continue
