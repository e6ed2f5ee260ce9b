"""The header of a GGUF file as data: numbers about the model and the size of its tensors. No weight is read.

Form: github.com/ggml-org/ggml/blob/master/docs/gguf.md. Little-endian, versions 2 and 3.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_client.profile.model_facts import FactsError, Mla, ModelFacts, Quantization, text, whole

MAGIC = b"GGUF"
MOST_HEADER_BYTES = 64 * 1024 * 1024  # vocabularies of 256,000 words take some 10 MB
MOST_KEYS = 65_536
MOST_TENSORS = 262_144
_KEPT_ITEMS = 1_024  # of arrays of numbers (one a layer); longer ones are passed over
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32  # of the tensors, unless general.alignment says otherwise

#: Every which layer attends to everything, where the header names a window and no pattern; 1 is all of them.
#: llama.cpp: src/models, load_arch_hparams and set_swa_pattern. Of other architectures it is not known here.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "phi3": 1}
_LLAMA4_WINDOW = 8192  # its header names none

#: Tensor type → name, weights a block, bytes a block (ggml.h, ggml-common.h).
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


class HeaderCutOff(FactsError):
    """cannot read the header: it goes on after the bytes that were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """`values` holds the numbers, short texts and short lists; `lengths` how long each list is."""

    version: int
    values: dict[str, Any]
    lengths: dict[str, int]
    tensors: int
    tensor_bytes: int | None  # None: a tensor has a type that is not known here
    parameters: int
    kinds: dict[str, int]  # parameters by tensor type
    header_bytes: int
    file_bytes: int | None = None  # that a whole file has at least; None as for tensor_bytes


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)[:MOST_HEADER_BYTES]
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise HeaderCutOff(f"cannot read the GGUF header: it goes on after {len(self._data)} bytes")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, most: int, what: str) -> int:
        found: int = self.number("Q")
        if found > most:
            raise FactsError(f"cannot read the GGUF header: it claims {found} {what}")
        return found

    def string(self) -> str:
        return bytes(self.take(self.count(MOST_HEADER_BYTES, "bytes of text"))).decode("utf-8", errors="replace")

    def value(self, kind: int) -> tuple[Any, int | None]:
        """The value, or None where it is passed over, and its length where it is a list."""
        if kind == _STRING:
            return self.string(), None
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind]), None
        if kind != _ARRAY:
            raise FactsError(f"cannot read the GGUF header: there is no value of type {kind}")
        inner, count = self.number("I"), self.count(MOST_HEADER_BYTES, "items of a list")
        if inner in _NUMBERS:
            code = _NUMBERS[inner]
            body = self.take(count * struct.calcsize(f"<{code}"))
            return (list(struct.unpack(f"<{count}{code}", body)) if count <= _KEPT_ITEMS else None), count
        if inner != _STRING:
            raise FactsError(f"cannot read the GGUF header: it has a list of type {inner}")
        for _ in range(count):
            self.take(self.count(MOST_HEADER_BYTES, "bytes of text"))
        return None, count


def read_header(data: bytes) -> GgufHeader:
    """From the first bytes of a file, up to MOST_HEADER_BYTES. Raises FactsError when it is none, or longer."""
    reader = _Reader(data)
    if bytes(reader.take(4)) != MAGIC:
        raise FactsError("cannot read the model file: it does not begin with GGUF")
    version = reader.number("I")
    if version not in (2, 3):
        raise FactsError(f"cannot read the GGUF header: version {version} is not known (2 and 3 are)")
    tensors, keys = reader.count(MOST_TENSORS, "tensors"), reader.count(MOST_KEYS, "keys")
    values: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(keys):
        key = reader.string()
        value, length = reader.value(reader.number("I"))
        if length is not None:
            lengths[key] = length
        if value is not None:
            values[key] = value
    size: int | None = 0
    end = 0
    kinds: dict[str, int] = {}
    for _ in range(tensors):
        reader.string()
        dimensions = [reader.number("Q") for _ in range(min(reader.number("I"), 8))]
        kind, offset = reader.number("I"), reader.number("Q")
        count = math.prod(dimensions)
        name, block, width = TYPES.get(kind, (f"type {kind}", 0, 0))
        kinds[name] = kinds.get(name, 0) + count
        size = size + count // block * width if size is not None and block else None
        end = max(end, offset + (count // block * width if block else 0))
    alignment = whole(values.get("general.alignment")) or _ALIGNMENT
    begin = -(-reader.at // alignment) * alignment
    return GgufHeader(
        version=version,
        values=values,
        lengths=lengths,
        tensors=tensors,
        tensor_bytes=size,
        parameters=sum(kinds.values()),
        kinds=kinds,
        header_bytes=reader.at,
        file_bytes=begin + end if size is not None else None,
    )


def facts_of_gguf(header: GgufHeader, *, weights_bytes: int | None = None) -> ModelFacts:
    """`weights_bytes` where the model lies in several files, of which this is the first."""
    values = header.values
    architecture = text(values.get("general.architecture"))

    def number(name: str) -> int | None:
        """One number, or the largest of one for each layer."""
        found = values.get(f"{architecture}.{name}")
        if isinstance(found, list):
            return max((n for n in map(whole, found) if n is not None), default=None)
        return whole(found)

    layers, heads = number("block_count"), number("attention.head_count")
    hidden, rank = number("embedding_length"), number("attention.kv_lora_rank")
    experts, dense = number("expert_count"), number("leading_dense_block_count") or 0
    rope = number("rope.dimension_count")
    full, windowed, window = _windows(architecture, values, layers)
    per_head = hidden // heads if hidden and heads and hidden % heads == 0 else None
    main = max(header.kinds, key=lambda kind: header.kinds[kind], default="")
    return ModelFacts(
        architecture=architecture,
        model_type=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("attention.head_count_kv") or heads,
        head_dim=number("attention.key_length") or per_head,
        intermediate=number("feed_forward_length"),
        vocabulary=number("vocab_size") or whole(header.lengths.get("tokenizer.ggml.tokens")),
        context=number("context_length"),
        mla=Mla(kv_lora_rank=rank, rope_head_dim=rope) if rank and rope else None,
        full_layers=full,
        window_layers=windowed,
        linear_layers=0 if not number("ssm.state_size") else None,
        window=window,
        experts=experts,
        experts_used=number("expert_used_count"),
        moe_intermediate=number("expert_feed_forward_length"),
        moe_layers=layers - min(dense, layers) if layers and experts else 0,
        dense_layers=(min(dense, layers) if experts else layers) if layers else None,
        quantization=Quantization(method="gguf", algorithm=main),
        weights_bytes=weights_bytes if weights_bytes is not None else header.tensor_bytes,
    )


def _windows(
    architecture: str, values: Mapping[str, Any], layers: int | None
) -> tuple[int | None, int | None, int | None]:
    """Layers that attend to everything, layers with a window, and the window. None where the header does not tell."""
    window = whole(values.get(f"{architecture}.attention.sliding_window"))
    if architecture == "llama4" and f"{architecture}.attention.sliding_window" not in values:
        window = _LLAMA4_WINDOW
    if not window or layers is None:
        return layers, 0, window
    pattern = values.get(f"{architecture}.attention.sliding_window_pattern", _FULL_EVERY.get(architecture))
    if isinstance(pattern, list) and pattern:  # one a layer: whether it has the window
        windowed = sum(bool(pattern[n % len(pattern)]) for n in range(layers))
        return layers - windowed, windowed, window
    if not isinstance(pattern, int) or isinstance(pattern, bool):
        return None, None, window
    full = layers // pattern if pattern > 0 else 0
    return full, layers - full, window if layers > full else None
