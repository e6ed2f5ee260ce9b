"""How many parameters a model has, from the shapes in its config.json; within 2 % of the real count for gated models.

For models whose files are not there yet, and for the experts' share of the weights.
"""

from dataclasses import dataclass

from agent_client.profile.model_facts import ModelFacts, Quantization

#: Bytes a parameter of whole tensors: engines.md section 6.
DTYPE_BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
#: Bits an element of llama.cpp's cache types, scales included (ggml's block sizes).
GGML_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5}
GGML_BITS |= {"iq4_nl": 4.5}
_FP8 = 1.0 + 4 / 128 / 128  # one byte, and a 4-byte scale for each block of 128 x 128
_MXFP4 = 4.25 / 8  # four bits, and an 8-bit scale for each 32
_NVFP4 = 4.5 / 8  # four bits, and an 8-bit scale for each 16
_SCALE_AND_ZERO_BITS = 16 + 4  # of each group in AWQ and GPTQ


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    embedding: int  # tokens in and out
    layers: int  # attention, MLPs, shared experts
    experts: int  # the routed ones: all of them lie in memory

    @property
    def total(self) -> int:
        return self.embedding + self.layers + self.experts

    @property
    def experts_share(self) -> float:
        return self.experts / self.total


def parameters(facts: ModelFacts) -> Parameters | None:
    """None where a figure is missing, and for families whose layers have another form."""
    hidden, vocabulary, layers = facts.hidden, facts.vocabulary, facts.layers
    attention = _attention(facts)
    if hidden is None or vocabulary is None or layers is None or attention is None or facts.gated is None:
        return None
    if facts.full_layers is None or facts.window_layers is None or facts.linear_layers is None:
        return None
    if facts.linear_layers and facts.linear_parameters is None:
        return None
    matrices = 3 if facts.gated else 2
    inside = (facts.full_layers + facts.window_layers) * attention
    inside += facts.linear_layers * (facts.linear_parameters or 0)
    experts = 0
    if facts.dense_layers:
        if facts.intermediate is None:
            return None
        inside += facts.dense_layers * matrices * hidden * facts.intermediate
    if facts.moe_layers and facts.experts:
        if facts.moe_intermediate is None:
            return None
        experts = facts.moe_layers * facts.experts * matrices * hidden * facts.moe_intermediate
        inside += facts.moe_layers * (matrices * hidden * (facts.shared_intermediate or 0) + hidden * facts.experts)
    embedding = vocabulary * hidden * (1 if facts.tied else 2)
    return Parameters(embedding=embedding, layers=inside, experts=experts)


def _attention(facts: ModelFacts) -> int | None:
    """Of one layer: query, key, value and output; for MLA its compressed forms."""
    hidden, heads = facts.hidden, facts.heads
    if hidden is None or heads is None:
        return None
    if facts.mla is not None:
        mla = facts.mla
        if mla.nope_head_dim is None or mla.value_head_dim is None:
            return None
        query = heads * (mla.nope_head_dim + mla.rope_head_dim)
        down = hidden * mla.q_lora_rank + mla.q_lora_rank * query if mla.q_lora_rank else hidden * query
        keys = hidden * (mla.kv_lora_rank + mla.rope_head_dim)
        keys += mla.kv_lora_rank * heads * (mla.nope_head_dim + mla.value_head_dim)
        return down + keys + heads * mla.value_head_dim * hidden
    if facts.kv_heads is None or facts.head_dim is None:
        return None
    return 2 * hidden * facts.head_dim * (heads + facts.kv_heads)


def estimated_weights_bytes(facts: ModelFacts) -> int | None:
    """The size of the files, where it is not known: parameters by bytes a parameter of their form."""
    count = parameters(facts)
    whole = DTYPE_BYTES.get(facts.dtype or "bfloat16")
    if count is None or whole is None:
        return None
    if facts.quantization is None:
        return int(count.total * whole)
    packed = packed_bytes(facts.quantization)
    if packed is None:
        return None
    if "mxfp4" in facts.quantization.method:  # experts alone
        return int((count.embedding + count.layers) * whole + count.experts * packed)
    return int(count.embedding * whole + (count.layers + count.experts) * packed)


def packed_bytes(quantization: Quantization) -> float | None:
    """Bytes of one quantized parameter, scales included; None for forms whose size is not known here."""
    method, algorithm = quantization.method, quantization.algorithm.upper()
    if "mxfp4" in method or "MXFP4" in algorithm:
        return _MXFP4
    if "fp4" in method or "NVFP4" in algorithm:
        return _NVFP4
    if "fp8" in method or algorithm.startswith("FP8") or "W8A8" in algorithm:
        return _FP8
    if quantization.bits:
        return (quantization.bits + _SCALE_AND_ZERO_BITS / (quantization.group_size or 128)) / 8
    return None
