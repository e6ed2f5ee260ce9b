"""What a card can't do, an engine does not know, or a model was not made for: dtype, quantization, context, names."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent_client.profile.choices import CHOICES
from agent_client.profile.problems import Problem
from agent_client.profile.profile import EngineKind
from agent_client.profile.subject import Rule, Subject

Capability = tuple[int, int]

_BFLOAT16: Capability = (8, 0)
_SGLANG_LEAST: Capability = (7, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Least:
    """The oldest compute capability that has a kernel, weights-only ones included; engines.md section 7."""

    vllm: Capability | None
    sglang: Capability | None


_LEAST: Mapping[str, _Least] = {
    "fp8": _Least(vllm=(7, 5), sglang=(8, 0)),  # native from 8.9; below it only the weights are fp8 (Marlin)
    "fbgemm_fp8": _Least(vllm=(8, 0), sglang=(8, 9)),
    "modelopt_fp8": _Least(vllm=(8, 0), sglang=(8, 9)),
    "nvfp4": _Least(vllm=(7, 5), sglang=(8, 0)),  # native from 10.0
    "awq": _Least(vllm=(7, 5), sglang=(7, 5)),
    "awq_marlin": _Least(vllm=(7, 5), sglang=(8, 0)),
    "gptq": _Least(vllm=(6, 0), sglang=(6, 0)),
    "gptq_marlin": _Least(vllm=(7, 5), sglang=(8, 0)),
    "mxfp4": _Least(vllm=(8, 0), sglang=(8, 0)),
    "w4a8": _Least(vllm=(9, 0), sglang=(9, 0)),  # compressed-tensors
    "w8a8_fp8": _Least(vllm=None, sglang=(8, 9)),
    "w8a8_int8": _Least(vllm=None, sglang=(7, 5)),
    "blockwise_int8": _Least(vllm=None, sglang=(8, 0)),
    "w4afp8": _Least(vllm=None, sglang=(9, 0)),
    "bitsandbytes": _Least(vllm=None, sglang=(7, 0)),
    "moe_wna16": _Least(vllm=(7, 0), sglang=(7, 0)),
    "experts_int8": _Least(vllm=(8, 0), sglang=None),
    "torchao": _Least(vllm=(7, 5), sglang=None),
}


def words(on: Subject) -> Iterator[Problem]:
    """What the engine's own parser or configuration refuses, in the version that the lists are of."""
    choices = CHOICES.get(on.profile.engine)
    if choices is None or (on.engine_version or choices.version)[: len(choices.version)] != choices.version:
        return
    for field in ("dtype", "quantization", "kv_cache_dtype"):
        asked, known = getattr(on.profile, field), getattr(choices, field)
        if asked is not None and asked not in known:
            near = difflib.get_close_matches(asked, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            yield on.problem(
                f"{field}_unknown",
                field,
                f"{on.profile.engine} has no {field} {asked}",
                f"{hint}one of {', '.join(known)}",
            )


def dtype(on: Subject) -> Iterator[Problem]:
    """vLLM: platforms/cuda.py check_if_supports_dtype. SGLang would use float16 instead of what was asked for."""
    if on.profile.dtype == "bfloat16" and on.capability is not None and on.capability < _BFLOAT16:
        yield on.problem(
            "dtype_unsupported",
            "dtype",
            f"bfloat16 needs compute capability {_shown(_BFLOAT16)}, {_card(on)} has {_shown(on.capability)}",
            "set dtype: float16, or leave it out",
        )


def capability(on: Subject) -> Iterator[Problem]:
    """SGLang: load_model_utils.py; 7.5 is the oldest that it takes."""
    if on.is_sglang and on.capability is not None and on.capability < _SGLANG_LEAST:
        yield on.problem(
            "capability_too_low",
            "gpu_class",
            f"SGLang needs compute capability {_shown(_SGLANG_LEAST)}, {_card(on)} has {_shown(on.capability)}",
            "choose a newer GPU class, or vLLM",
        )


def quantization(on: Subject) -> Iterator[Problem]:
    """Refused while the model is loaded, in vLLM (config/vllm.py) and SGLang (model_loader/loader.py) alike."""
    asked, stored = on.profile.quantization, on.facts.quantization
    if asked is not None and stored is not None and _family(asked) != _family(stored.method):
        yield on.problem(
            "quantization_differs",
            "quantization",
            f"its weights are stored as {stored.method}, quantization {asked} can't read them",
            "leave quantization out: the engine reads it from the model",
        )
        return
    name = _kernel(on, asked)
    least = _LEAST.get(name)
    need = None if least is None else least.vllm if on.is_vllm else least.sglang
    if need is not None and on.capability is not None and on.capability < need:
        yield on.problem(
            "quantization_unsupported",
            "quantization" if asked else "gpu_class",
            f"its quantization {asked or (stored.method if stored else name)} needs compute capability {_shown(need)}, "
            f"{_card(on)} has {_shown(on.capability)}",
            "choose a newer GPU class, or another copy of the model",
        )


def context(on: Subject) -> Iterator[Problem]:
    """vLLM: config/model.py _get_and_verify_max_len; SGLang: configs/model_config.py _derive_context_length.

    llama-server cuts it down to the model's with no more than a line of its output (server: n_ctx_train, "capping").
    """
    asked, most = on.profile.max_model_len, on.facts.context
    if on.profile.engine is EngineKind.LLAMACPP:
        yield from _llama_context(on)
        return
    override = "VLLM_ALLOW_LONG_MAX_MODEL_LEN" if on.is_vllm else "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    if asked is None or most is None or asked <= most or on.profile.env.get(override) in ("1", "true", "True"):
        return
    if on.has_argument("--hf-overrides*", "--rope-scaling", "--json-model-override-args"):
        return  # the configuration that decides is another one
    yield on.problem(
        "context_exceeds_model",
        "max_model_len",
        f"max_model_len {asked} is above the model's {most}",
        f"lower it to {most}; if you know that the model can do it, set env: {{{override}: '1'}}",
    )


def _llama_context(on: Subject) -> Iterator[Problem]:
    asked, most = on.profile.max_model_len, on.facts.context
    if asked is None or most is None or asked <= most or on.has_argument("--rope*", "--yarn*", "--override-kv"):
        return
    yield on.problem(
        "context_exceeds_model",
        "max_model_len",
        f"max_model_len {asked} is above the model's {most}",
        f"lower it to {most}, or scale the model's positions in extra_args",
    )


def names(on: Subject) -> Iterator[Problem]:
    """SGLang: validation_hook.py: what follows a colon names a LoRA adapter."""
    if on.is_sglang and on.served_names and ":" in on.served_names[0]:
        yield on.problem(
            "name_unsupported",
            "name",
            f"SGLang can't serve the name {on.served_names[0]!r}: it must have no colon",
            "choose another name, and give this one as an alias",
        )


def shared_memory(on: Subject) -> Iterator[Problem]:
    """vLLM measured: "160 MiB required" for each queue of a replica with more than one worker."""
    need = 160
    if on.is_vllm and on.profile.gpus_per_node > 1 and on.shm_free_mib is not None and on.shm_free_mib < need:
        yield on.problem(
            "shm_too_small",
            "gpus",
            f"{on.shm_free_mib} MiB are free in /dev/shm, its workers need {need}",
            "make it larger, for example: mount -o remount,size=16G /dev/shm",
        )


def _family(name: str) -> str:
    """Names that read the same files."""
    for family in ("gptq", "awq", "modelopt", "mxfp4"):
        if family in name:
            return family
    return "fp8" if name.startswith("fp8") else name


def _kernel(on: Subject, asked: str | None) -> str:
    """The row of the table that a checkpoint, or a quantization while loading, needs."""
    stored = on.facts.quantization
    if stored is None or asked in _LEAST:
        return "fp8" if (asked or "").startswith("fp8") else asked or ""
    method, algorithm = stored.method, stored.algorithm.upper()
    if "MXFP4" in algorithm or "mxfp4" in method:
        return "mxfp4"
    if "FP4" in algorithm or "fp4" in method:
        return "nvfp4"
    if method == "compressed-tensors":
        return "w4a8" if algorithm.startswith("W4A8") else "fp8" if "FLOAT-QUANTIZED" in algorithm else ""
    if method.startswith("modelopt"):
        return "modelopt_fp8" if algorithm.startswith("FP8") or method.endswith("fp8") else ""
    return method


def _card(on: Subject) -> str:
    return next((card.name for card in on.cards if card.capability == on.capability and card.name), "the GPU")


def _shown(number: Capability) -> str:
    return f"{number[0]}.{number[1]}"


RULES: tuple[Rule, ...] = (words, dtype, capability, quantization, context, names, shared_memory)
