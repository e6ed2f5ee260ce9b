"""Which layers of a model attend to everything, to a window, or keep a fixed state; and which are made of experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_client.profile.model_facts import first, text, whole

_FULL = {"full_attention", "attention", "global_attention", "global"}
_WINDOW = {"sliding_attention", "chunked_attention", "local_attention", "local", "sliding"}
_LINEAR = {"linear_attention", "mamba", "mamba2", "recurrent", "conv"}
_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "auto": 2}
_LLAMA4_FULL_EVERY = 4  # transformers Llama4TextConfig: no_rope_layer_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKinds:
    full: int | None = None
    windowed: int | None = None
    linear: int | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearState:
    """`bytes` of one sequence in one layer, `parameters` of one layer."""

    bytes: int
    parameters: int


def layer_kinds(config: Mapping[str, Any], layers: int | None) -> LayerKinds:
    """Only the first kind grows with the context. `layer_types` where given, else each family's own way to say it."""
    if layers is None:
        return LayerKinds()
    window = first(config, "sliding_window", "attention_chunk_size", "window_size")
    if config.get("use_sliding_window") is False:
        window = None
    listed = config.get("layer_types")
    if isinstance(listed, list) and listed:
        names = [text(name) for name in listed]
        full, windowed, linear = (sum(name in kind for name in names) for kind in (_FULL, _WINDOW, _LINEAR))
        known = full + windowed + linear == len(names)
        return LayerKinds(full=full, windowed=windowed, linear=linear, window=window) if known else LayerKinds()
    if pattern := text(config.get("hybrid_override_pattern")):
        return LayerKinds(full=pattern.count("*"), windowed=0, linear=pattern.count("M"))
    attending = _full_of_hybrid(config, layers)
    if attending is not None:
        return LayerKinds(full=attending, windowed=0, linear=layers - attending)
    if window is None:
        return LayerKinds(full=layers, windowed=0, linear=0)
    full = min(_full_beside_windows(config, layers), layers)
    return LayerKinds(full=full, windowed=layers - full, linear=0, window=window)


def _full_of_hybrid(config: Mapping[str, Any], layers: int) -> int | None:
    """Qwen3-Next: every n-th; MiniMax-01: a list of 1 and 0; Jamba: a period and an offset."""
    if every := whole(config.get("full_attention_interval")):
        return layers // every
    listed = config.get("attn_type_list")
    if isinstance(listed, list) and len(listed) == layers:
        return sum(item == 1 for item in listed)
    if period := whole(config.get("attn_layer_period")):
        offset = whole(config.get("attn_layer_offset")) or 0
        return sum(i % period == offset for i in range(layers))
    return None


def _full_beside_windows(config: Mapping[str, Any], layers: int) -> int:
    """Gemma 3 and Cohere 2: every n-th; Gemma 2: every second; Llama 4: those without RoPE; Qwen2: the first ones."""
    if every := first(config, "sliding_window_pattern", "_sliding_window_pattern"):
        return layers // every
    if config.get("model_type") == "gemma2":
        return layers // 2
    if whole(config.get("attention_chunk_size")):
        listed = config.get("no_rope_layers")
        if isinstance(listed, list) and len(listed) == layers:
            return sum(item == 0 for item in listed)
        return layers // (whole(config.get("no_rope_layer_interval")) or _LLAMA4_FULL_EVERY)
    if config.get("use_sliding_window") is True:
        return whole(config.get("max_window_layers")) or 0
    return 0


def linear_state(config: Mapping[str, Any], dtype: str, hidden: int | None) -> LinearState | None:
    """State and size of one linear layer. Shapes as in vLLM's mamba_utils.py: MambaStateShapeCalculator."""
    width = _DTYPE_BYTES.get(dtype, 2)
    kernel = first(config, "conv_kernel", "linear_conv_kernel_dim", "mamba_d_conv")
    if kernel is None or hidden is None:
        return None
    ssm_width = _DTYPE_BYTES.get(text(config.get("mamba_ssm_cache_dtype")), width)
    heads, dim = whole(config.get("mamba_num_heads")), whole(config.get("mamba_head_dim"))
    state, groups = whole(config.get("ssm_state_size")), whole(config.get("n_groups"))
    if heads and dim and state and groups:
        inner, channels = heads * dim, heads * dim + 2 * groups * state
        size = (kernel - 1) * channels * width + heads * dim * state * ssm_width
        return LinearState(bytes=size, parameters=hidden * (inner + channels + heads) + inner * hidden)
    keys, values = whole(config.get("linear_num_key_heads")), whole(config.get("linear_num_value_heads"))
    key_dim, value_dim = whole(config.get("linear_key_head_dim")), whole(config.get("linear_value_head_dim"))
    if keys and values and key_dim and value_dim:
        inner, channels = values * value_dim, 2 * keys * key_dim + values * value_dim
        size = (kernel - 1) * channels * width + values * key_dim * value_dim * ssm_width
        return LinearState(bytes=size, parameters=hidden * (channels + inner + 2 * values) + inner * hidden)
    return None


def moe_and_dense_layers(config: Mapping[str, Any], layers: int | None) -> tuple[int | None, int | None]:
    """How many layers are made of experts, and how many have an ordinary MLP."""
    if layers is None:
        return None, None
    if pattern := text(config.get("hybrid_override_pattern")):
        return pattern.count("E"), pattern.count("-")
    if not experts_of(config):
        return 0, layers
    if "first_k_dense_replace" in config:
        dense = whole(config.get("first_k_dense_replace")) or 0
        return max(layers - dense, 0), min(dense, layers)
    listed = config.get("moe_layers")
    if isinstance(listed, list) and listed:
        return len(listed), max(layers - len(listed), 0)
    step = first(config, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    plain = config.get("mlp_only_layers")
    skipped = {i for i in plain if isinstance(i, int)} if isinstance(plain, list) else set()
    moe = sum((i + 1) % step == 0 and i not in skipped for i in range(layers))
    return moe, layers - moe


def experts_of(config: Mapping[str, Any]) -> int | None:
    return first(config, "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
