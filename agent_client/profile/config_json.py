"""A model's config.json, as transformers writes it, to ModelFacts. Multi-modal models have their text part inside."""

from collections.abc import Mapping
from typing import Any

from agent_client.profile.layers import experts_of, layer_kinds, linear_state, moe_and_dense_layers
from agent_client.profile.model_facts import Mla, ModelFacts, Quantization, first, mapping, text, whole

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_CONTEXT_KEYS = (  # vLLM 0.32: transformers_utils/model_arch_config_convertor.py
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: RoPE scalings whose factor is in max_position_embeddings already (vLLM 0.32: config/model.py).
_SCALED_ALREADY = {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default", "mrope"}
#: Families from before gated MLPs: their parameters are not estimated.
_UNGATED = {"gpt2", "gpt_neox", "gptj", "falcon", "opt", "bloom", "mpt", "phi", "starcoder2", "gpt_bigcode", "nemotron"}


def facts_of_config(
    config: Mapping[str, Any],
    *,
    quantization_file: Mapping[str, Any] | None = None,
    weights_bytes: int | None = None,
) -> ModelFacts:
    """`quantization_file` is modelopt's hf_quant_config.json, weights_bytes the size of all weight files."""
    part = next((config[name] for name in _TEXT_PARTS if isinstance(config.get(name), Mapping)), config)
    layers = first(part, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = first(part, "hidden_size", "n_embd", "d_model")
    heads = first(part, "num_attention_heads", "n_head", "n_heads", "num_heads")
    dtype = next((t for t in (text(p.get(k)) for p in (part, config) for k in ("dtype", "torch_dtype")) if t), "")
    dtype = dtype.removeprefix("torch.")
    kinds = layer_kinds(part, layers)
    linear = linear_state(part, dtype, hidden) if kinds.linear else None
    moe, dense = moe_and_dense_layers(part, layers)
    intermediate = first(part, "intermediate_size", "n_inner", "ffn_hidden_size")
    model_type = text(config.get("model_type")) or text(part.get("model_type"))
    architectures = config.get("architectures")
    experts = experts_of(part)
    expert_size = (first(part, "moe_intermediate_size", "expert_hidden_size") or intermediate) if experts else None
    tied = config.get("tie_word_embeddings", part.get("tie_word_embeddings"))
    return ModelFacts(
        architecture=text(architectures[0]) if isinstance(architectures, list) and architectures else "",
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(part, heads),
        head_dim=_head_dim(part, hidden, heads),
        intermediate=first(part, "intermediate_size_mlp") or intermediate,
        vocabulary=first(part, "vocab_size"),
        context=_context(part, model_type),
        dtype=dtype,
        tied=tied if isinstance(tied, bool) else None,
        gated=_gated(part, model_type),
        mla=_mla(part),
        full_layers=kinds.full,
        window_layers=kinds.windowed,
        linear_layers=kinds.linear,
        window=kinds.window,
        state_bytes=linear.bytes * kinds.linear if linear and kinds.linear else None,
        linear_parameters=linear.parameters if linear else None,
        experts=experts,
        experts_used=first(part, "num_experts_per_tok", "moe_topk", "num_experts_per_token"),
        moe_intermediate=expert_size,
        shared_intermediate=_shared(part, expert_size, model_type) if experts else None,
        moe_layers=moe,
        dense_layers=dense,
        quantization=_quantization(config, part, quantization_file),
        weights_bytes=weights_bytes,
        remote_code=bool(mapping(config.get("auto_map"))),
    )


def _kv_heads(part: Mapping[str, Any], heads: int | None) -> int | None:
    """Without a number of their own, keys and values have as many heads as queries; Falcon's multi_query has one."""
    if (found := first(part, "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")) is not None:
        return found
    return 1 if part.get("multi_query") is True else heads


def _head_dim(part: Mapping[str, Any], hidden: int | None, heads: int | None) -> int | None:
    """The model's own where given: Qwen3-32B has 128, not 5120/64."""
    if (found := first(part, "head_dim", "kv_channels", "attention_head_dim")) is not None:
        return found
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _context(part: Mapping[str, Any], model_type: str) -> int | None:
    """As vLLM 0.32 does: model_max_length, else the smallest length given; times the RoPE factor of some types."""
    given = [n for n in (whole(part.get(key)) for key in _CONTEXT_KEYS) if n is not None]
    if (own := whole(part.get("model_max_length"))) is not None:
        given = [own]
    if not given:
        return None
    rope = mapping(part.get("rope_scaling")) or mapping(part.get("rope_parameters"))
    kind = text(rope.get("rope_type")) or text(rope.get("type"))
    factor = rope.get("factor")
    scaled = bool(kind) and kind not in _SCALED_ALREADY and "gemma3" not in model_type
    if not scaled or isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 10_000:
        return min(given)
    return int(min(given) * factor)


def _gated(part: Mapping[str, Any], model_type: str) -> bool | None:
    if model_type in _UNGATED:
        return None
    return text(part.get("mlp_hidden_act")) != "relu2" and model_type != "nemotron_h"


def _mla(part: Mapping[str, Any]) -> Mla | None:
    rank, rope = whole(part.get("kv_lora_rank")), whole(part.get("qk_rope_head_dim"))
    if rank is None or rope is None:
        return None
    return Mla(
        kv_lora_rank=rank,
        rope_head_dim=rope,
        nope_head_dim=whole(part.get("qk_nope_head_dim")),
        value_head_dim=whole(part.get("v_head_dim")),
        q_lora_rank=whole(part.get("q_lora_rank")),
        index_head_dim=whole(part.get("index_head_dim")),
    )


def _shared(part: Mapping[str, Any], expert_size: int | None, model_type: str) -> int:
    """All shared experts of a layer as one width. Llama 4 has one the size of an expert, without saying so."""
    if (found := first(part, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")) is not None:
        return found
    count = first(part, "n_shared_experts", "num_shared_experts") or (1 if model_type.startswith("llama4") else 0)
    return count * (expert_size or 0)


def _quantization(
    config: Mapping[str, Any], part: Mapping[str, Any], file: Mapping[str, Any] | None
) -> Quantization | None:
    given = next((q for q in (mapping(p.get("quantization_config")) for p in (config, part)) if q), None)
    given = given or mapping(config.get("compression_config"))
    if not given and file is not None and (inner := mapping(file.get("quantization"))):
        given = {"quant_method": "modelopt", **inner}
    method = text(given.get("quant_method")).lower()
    if not method:
        return None
    group = next(iter(mapping(given.get("config_groups")).values()), None)
    weights = mapping(mapping(group).get("weights"))
    algorithm = text(given.get("quant_algo")) or text(given.get("format"))
    inputs = mapping(mapping(group).get("input_activations"))
    if method == "compressed-tensors" and weights:
        algorithm = f"W{whole(weights.get('num_bits'))}A{whole(inputs.get('num_bits')) or 16} {algorithm}".strip()
    block = given.get("weight_block_size")
    sizes = [whole(n) for n in block] if isinstance(block, list) else []
    skipped = given.get("modules_to_not_convert") or given.get("ignore") or given.get("exclude_modules")
    return Quantization(
        method=method,
        algorithm=algorithm,
        bits=first(given, "bits", "w_bit") or whole(weights.get("num_bits")),
        group_size=first(given, "group_size", "q_group_size") or whole(weights.get("group_size")),
        block=(sizes[0], sizes[1]) if len(sizes) == 2 and sizes[0] and sizes[1] else None,
        kv_cache=text(given.get("kv_cache_quant_algo")).lower(),
        skipped=tuple(text(name) for name in skipped if text(name)) if isinstance(skipped, list) else (),
    )
