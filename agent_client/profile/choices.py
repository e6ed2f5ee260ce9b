"""The words that each engine takes for dtype, quantization and cache dtype, by the version that they were read from.

vLLM: engine/arg_utils.py and layers/quantization/__init__.py; bitsandbytes and gguf come with plugins of its own.
SGLang: server_args.py. Another installed version may know others: then nothing is refused by these lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent_client.profile.profile import EngineKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    version: tuple[int, ...]
    dtype: tuple[str, ...]
    quantization: tuple[str, ...]
    kv_cache_dtype: tuple[str, ...]


_DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")

CHOICES: Mapping[EngineKind, Choices] = {
    EngineKind.VLLM: Choices(
        version=(0, 32),
        dtype=_DTYPES,
        quantization=(
            *("auto_awq", "auto_gptq", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors", "deepseek_v4_fp8"),
            *("experts_int8", "fbgemm_fp8", "fp8", "fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "fp_quant"),
            *("gguf", "gpt_oss_mxfp4", "gptq", "gptq_marlin", "humming", "inc", "int8_per_channel_weight_only"),
            *("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8"),
            *("nvfp4_per_token", "online", "quark", "torchao"),
        ),
        kv_cache_dtype=(
            *("auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc"),
            *("fp8_per_token_head", "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6"),
            *("nvfp4_ds_mla", "turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4"),
            "ultraquant_4bit",
        ),
    ),
    EngineKind.SGLANG: Choices(
        version=(0, 5, 23),
        dtype=_DTYPES,
        quantization=(
            *("auto-round", "auto-round-int8", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors", "fp8"),
            *("gguf", "gptq", "gptq_marlin", "humming", "mlx_q4", "mlx_q8", "modelopt", "modelopt_fp4"),
            *("modelopt_fp8", "modelopt_mixed", "modelslim", "moe_wna16", "mxfp4", "mxfp8", "mxfp_w4a8"),
            *("nvfp4_online", "petit_nvfp4", "quark", "quark_int4fp8_moe", "quark_mxfp4", "unquant", "w4afp8"),
            *("w8a8_fp8", "w8a8_int8"),
        ),
        kv_cache_dtype=(
            *("auto", "bf16", "bfloat16", "fp4_mx_block16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4"),
            "fp8",  # the adapter makes fp8_e4m3 of it, so that a profile goes with both engines
        ),
    ),
}
