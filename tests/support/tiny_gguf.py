"""Writes a tiny random Llama as GGUF (0.5 MB), for tests of a real engine.

The weights are noise, but for one direction that is constant in every token's embedding and lets the output
choose printable ASCII only (llama-server refuses a reply that is not valid UTF-8).
"""

import gguf
import numpy as np

V, D, H, L, F = 3 + 256, 64, 4, 2, 128
PRINTABLE = range(0x20, 0x7F)


def write(path: str, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)

    def noise(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    w = gguf.GGUFWriter(path, "llama")
    w.add_name("tiny-random")
    w.add_context_length(2048)
    w.add_embedding_length(D)
    w.add_block_count(L)
    w.add_feed_forward_length(F)
    w.add_head_count(H)
    w.add_head_count_kv(H)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(D // H)
    w.add_vocab_size(V)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_tokenizer_model("llama")
    w.add_token_list([b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)])
    w.add_token_scores([0.0] * V)
    w.add_token_types(
        [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    )
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_chat_template("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    embedding, output = noise(V, D), noise(V, D)
    embedding[:, 0] = 1.0
    output[:, 0] = -6.0
    output[[3 + b for b in PRINTABLE], 0] = 1.0
    output[2, 0] = 0.9  # an end now and then
    w.add_tensor("token_embd.weight", embedding)
    w.add_tensor("output_norm.weight", np.ones(D, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(L):
        p = f"blk.{i}."
        attention = [(f"attn_{part}", (D, D)) for part in ("q", "k", "v", "output")]
        feed = [("ffn_gate", (F, D)), ("ffn_up", (F, D)), ("ffn_down", (D, F))]
        for name, shape in attention + feed:
            w.add_tensor(p + name + ".weight", noise(*shape))
        w.add_tensor(p + "attn_norm.weight", np.ones(D, np.float32))
        w.add_tensor(p + "ffn_norm.weight", np.ones(D, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
