"""What a model's own files say about it, read as data: config.json, the quantization's file, the safetensors index.

Nothing here runs a model's code. Figures that the files do not give, or give in a form not understood, are None.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_CONFIG_BYTES = 8 * 1024 * 1024
MOST_INDEX_BYTES = 64 * 1024 * 1024  # DeepSeek-V3's is 9 MB
MOST_NUMBER = 2**53


class FactsError(ValueError):
    """cannot read a model's description; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the weights are stored. `algorithm` is the finer name of modelopt and compressed-tensors."""

    method: str
    algorithm: str = ""
    bits: int | None = None
    group_size: int | None = None
    block: tuple[int, int] | None = None  # (out, in) of a block with one scale
    kv_cache: str = ""
    skipped: tuple[str, ...] = ()  # modules left as they were


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Multi-head latent attention: one compressed row a token instead of keys and values for each head."""

    kv_lora_rank: int
    rope_head_dim: int
    nope_head_dim: int | None = None
    value_head_dim: int | None = None
    q_lora_rank: int | None = None
    index_head_dim: int | None = None  # sparse attention's own cache (DeepSeek-V3.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes in elements, bytes where the name says so."""

    architecture: str = ""
    model_type: str = ""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None
    vocabulary: int | None = None
    context: int | None = None  # the most that an engine accepts without being told to trust the user
    dtype: str = ""
    tied: bool | None = None
    gated: bool | None = None  # an MLP of three matrices instead of two
    mla: Mla | None = None
    full_layers: int | None = None  # attend to everything: their cache grows with the context
    window_layers: int | None = None
    linear_layers: int | None = None  # Mamba and the like: a fixed state for each sequence
    window: int | None = None
    state_bytes: int | None = None  # of one sequence, all linear layers together
    linear_parameters: int | None = None  # of one linear layer
    experts: int | None = None
    experts_used: int | None = None
    moe_intermediate: int | None = None
    shared_intermediate: int | None = None  # all shared experts together
    moe_layers: int | None = None
    dense_layers: int | None = None
    quantization: Quantization | None = None
    weights_bytes: int | None = None
    remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightIndex:
    """model.safetensors.index.json: which files there must be, and how much all tensors weigh."""

    total_bytes: int | None
    files: tuple[str, ...]


def read_json(data: bytes, what: str, *, most_bytes: int = MOST_CONFIG_BYTES) -> Mapping[str, Any]:
    """A JSON object out of bytes; raises FactsError for anything else, and for more than `most_bytes`."""
    if len(data) > most_bytes:
        raise FactsError(f"cannot read {what}: it has {len(data)} bytes, {most_bytes} at most are read")
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise FactsError(f"cannot read {what}: it is not valid JSON ({str(error)[:120]})") from None
    if not isinstance(value, Mapping):
        raise FactsError(f"cannot read {what}: it holds {type(value).__name__}, keys and values are needed")
    return value


def read_index(data: bytes, what: str = "model.safetensors.index.json") -> WeightIndex:
    """Names that leave the model's folder are refused: somebody else wrote the file."""
    index = read_json(data, what, most_bytes=MOST_INDEX_BYTES)
    weights = index.get("weight_map")
    if not isinstance(weights, Mapping) or not weights:
        raise FactsError(f"cannot read {what}: it has no weight_map")
    files = sorted({name for name in weights.values() if isinstance(name, str)})
    bad = next((name for name in files if name.startswith("/") or ".." in name.split("/") or "\x00" in name), None)
    if bad is not None or not files:
        raise FactsError(f"cannot read {what}: it names {bad!r}, which is no file of the model's folder")
    metadata = index.get("metadata")
    total = whole(metadata.get("total_size")) if isinstance(metadata, Mapping) else None
    return WeightIndex(total_bytes=total, files=tuple(files))


def whole(value: object) -> int | None:
    """A count above 0, or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MOST_NUMBER:
        return None
    return value


def first(data: Mapping[str, Any], *names: str) -> int | None:
    """The first of several spellings that holds a count."""
    return next((n for n in (whole(data.get(name)) for name in names) if n is not None), None)


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
