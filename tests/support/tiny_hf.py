"""Writes a tiny random Llama in Hugging Face form (1.5 MB): config, safetensors, byte-level tokenizer, chat template.

The weights are noise, but for one direction that is constant in every token's embedding and lets the output choose
printable ASCII only. Heads 4, KV heads 2, layers 2, vocabulary 259, context 2,048.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SPECIAL = ("<unk>", "<s>", "</s>")
V, D, H, K, L, F = len(SPECIAL) + 256, 128, 4, 2, 2, 256
CONTEXT = 2048
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": F,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "num_hidden_layers": L,
    "vocab_size": V,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": CONTEXT,
    "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
}


def write(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True)
    files = {"config.json": CONFIG, "tokenizer.json": _tokenizer(), "tokenizer_config.json": TOKENIZER_CONFIG}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    (folder / "model.safetensors").write_bytes(_safetensors(seed))


def _tensors(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(seed)

    def noise(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    embedding, output = noise(V, D), noise(V, D)
    embedding[:, 0] = 1.0
    output[:, 0] = -6.0
    output[[len(SPECIAL) + byte for byte in range(0x20, 0x7F)], 0] = 1.0
    output[2, 0] = 0.9  # an end now and then
    yield "model.embed_tokens.weight", embedding
    half = K * D // H
    shapes = {"self_attn.q_proj": (D, D), "self_attn.k_proj": (half, D), "self_attn.v_proj": (half, D)}
    shapes |= {"self_attn.o_proj": (D, D), "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}
    for layer in range(L):
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}.weight", noise(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", np.ones(D, np.float32)
    yield "model.norm.weight", np.ones(D, np.float32)
    yield "lm_head.weight", output


def _safetensors(seed: int) -> bytes:
    """An 8-byte length, a JSON header with each tensor's place, and the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    at = 0
    for name, array in _tensors(seed):
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        blobs.append(array.tobytes())
        at += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(blobs)


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE, in byte order."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(spare)) for byte in range(256)]


def _tokenizer() -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    words = [*SPECIAL, *_byte_alphabet()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [],
        },
    }
