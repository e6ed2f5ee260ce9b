"""llama.cpp: `llama-server`, the launcher around the `xllamacpp` wheel, or llama-cpp-python's server."""

from collections.abc import Iterator
from enum import StrEnum

from agent_client.engines.base import Launch, LaunchSpec, Readiness, cards, command, environment, refuse, refuse_env
from agent_client.engines.command import Word, asked, either, extra, ours
from agent_client.engines.options import OptionTable, refused, table, unparsable
from agent_client.engines.unmapped import given, unmapped
from agent_client.profile import Problem, Profile

XLLAMACPP_PROGRAM = "xllamacpp_server"
LLAMA_CPP_PYTHON_MODULE = "llama_cpp.server"
#: Presets and repositories name another model, and the presets another port.
OWNED_FLAGS = (
    *("--host", "--port", "--reuse-port", "--api-prefix", "--alias", "--api-key", "--api-key-file"),
    *("--ssl-key-file", "--ssl-cert-file", "--ctx-size", "--parallel", "--metrics"),
    *("--model", "--model-url", "--docker-repo", "--hf-repo", "--hf-file"),
    *("--models-dir", "--models-preset", "--models-max", "--models-autoload"),
    *("--embd-gemma-default", "--gpt-oss-20b-default", "--gpt-oss-120b-default"),
    *("--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec"),
    *("--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default"),
)
OWNED_PYTHON_FLAGS = (
    *("--host", "--port", "--root_path", "--model", "--model_alias", "--models", "--config_file", "--api_key"),
    *("--n_ctx", "--ssl_keyfile", "--ssl_certfile", "--hf_model_repo_id"),
)
#: What each reads from the environment though llmgw does not set it there (the command line wins for the others).
OWNED_ENV = (
    *("LLAMA_ARG_API_PREFIX", "LLAMA_ARG_API_KEY_FILE", "LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE"),
    *("LLAMA_ARG_MODELS_DIR", "LLAMA_ARG_MODELS_PRESET", "LLAMA_ARG_HF_REPO", "LLAMA_ARG_MODEL_URL"),
    *("LLAMA_ARG_DOCKER_REPO", "LLAMA_ARG_REUSE_PORT"),
)
OWNED_PYTHON_ENV = ("CONFIG_FILE", "API_KEY", "ROOT_PATH", "SSL_KEYFILE", "SSL_CERTFILE", "HF_MODEL_REPO_ID", "MODELS")

UNMAPPED = {
    "dtype": ("it computes with the types that the GGUF file has", "leave it out, or name another file"),
    "quantization": ("a GGUF file is quantized as it is", "leave it out, and name the file with the one you want"),
    "gpu_memory_utilization": (
        "it takes what model and context need, no share of the card",
        "leave it out; max_model_len and options.parallel say how much that is",
    ),
    "data_parallel": ("one process runs one copy", "raise `replicas` instead"),
    "expert_parallel": ("it spreads layers or rows, not experts", "leave it out"),
}
#: Types of its cache (llama-server --help, --cache-type-k), and the words of other engines for the same; the numbers
#: are ggml's (ggml.h, enum ggml_type), which llama-cpp-python takes.
CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7}
_CACHE_WORDS = {"float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16"}
_WHOLE = ("f32", "f16", "bf16")
#: Requests at once, unless the profile says otherwise.
_SLOTS = 4
#: How several cards share a model (llama.h, enum llama_split_mode).
SPLIT_MODES = {"layer": 1, "row": 2}


class Variant(StrEnum):
    LLAMA_SERVER = "llama-server"
    XLLAMACPP = "xllamacpp"
    LLAMA_CPP_PYTHON = "llama-cpp-python"


def variant(command: tuple[str, ...]) -> Variant:
    """Which program a command starts."""
    if any(XLLAMACPP_PROGRAM in word for word in command):
        return Variant.XLLAMACPP
    if LLAMA_CPP_PYTHON_MODULE in command:
        return Variant.LLAMA_CPP_PYTHON
    return Variant.LLAMA_SERVER


def options(command: tuple[str, ...]) -> OptionTable:
    """What the program that a command starts understands. Only llama-cpp-python's parser takes prefixes."""
    match variant(command):
        case Variant.XLLAMACPP:
            return table(XLLAMACPP_PROGRAM, abbreviations=False)
        case Variant.LLAMA_CPP_PYTHON:
            return table("llama_cpp_python")
        case Variant.LLAMA_SERVER:
            return table("llama_server", abbreviations=False)


def plan(spec: LaunchSpec) -> Launch:
    program = spec.command or ("llama-server",)
    if variant(program) is Variant.LLAMA_CPP_PYTHON:
        return _plan_python(spec, program)
    profile = spec.profile
    known = options(program)
    wrong = (*refused(profile.extra_args, known, OWNED_FLAGS), *unparsable(profile.extra_args, known))
    dropped = unmapped(profile, variant(program), UNMAPPED, options=("parallel",))
    refuse(spec, (*wrong, *refuse_env(spec, OWNED_ENV), *dropped, *_unlike(profile, variant(program))))
    parallel = int(profile.options.get("parallel") or _SLOTS)
    words = [*command(spec, program), *asked("--model", profile.model)]
    words += ours("--host", spec.address, "--port", spec.port)
    # The name alone: it looks at no request's, sorts several, and would put the first of those into each answer.
    words += ours("--alias", spec.served_names[0])
    words += [*either("--parallel", parallel, default=_SLOTS), *ours("--metrics")]
    # llama-server shares -c among its slots: a request may use context x 1 only when each slot has that much.
    words += asked("--ctx-size", profile.max_model_len and profile.max_model_len * parallel)
    cache = _cache_type(profile)
    words += [*asked("--cache-type-k", cache), *asked("--cache-type-v", cache), *asked("--split-mode", _split(profile))]
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["LLAMA_API_KEY"] = spec.engine_key
    env = environment(spec, owned, secrets=["LLAMA_API_KEY"])
    return Launch(words=(*words, *extra(profile)), env=env)


def _plan_python(spec: LaunchSpec, program: tuple[str, ...]) -> Launch:
    """It answers one request at a time and takes its key as API_KEY (pydantic settings read the environment)."""
    profile = spec.profile
    known = refused(profile.extra_args, options(program), OWNED_PYTHON_FLAGS)
    dropped = unmapped(profile, Variant.LLAMA_CPP_PYTHON, UNMAPPED)
    unlike = _unlike(profile, Variant.LLAMA_CPP_PYTHON)
    refuse(spec, (*known, *refuse_env(spec, OWNED_PYTHON_ENV), *dropped, *unlike))
    words = [*command(spec, program), *asked("--model", profile.model)]
    words += ours("--host", spec.address, "--port", spec.port)
    words += ours("--model_alias", spec.served_names[0])
    words += asked("--n_ctx", profile.max_model_len)
    words += _python_numbers(profile)
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["API_KEY"] = spec.engine_key
    env = environment(spec, owned, secrets=["API_KEY"])
    words += extra(profile)
    readiness = Readiness(health_path="/v1/models", one_at_a_time=True)
    return Launch(words=tuple(words), env=env, readiness=readiness)


def _unlike(profile: Profile, engine: str) -> Iterator[Problem]:
    """Values that it has no word for."""
    if given(profile, "kv_cache_dtype") and _cache_type(profile) not in CACHE_TYPES:
        text = f"cannot use kv_cache_dtype = {profile.kv_cache_dtype} with {engine}: its cache has no such type"
        hint = f"use {', '.join(CACHE_TYPES)}"
        yield Problem(code="kv_cache_dtype_unknown", field="profile.kv_cache_dtype", text=text, hint=hint)
    if profile.tensor_parallel > 1 and profile.pipeline_parallel > 1:
        text = f"cannot use pipeline_parallel = {profile.pipeline_parallel} with {engine} beside tensor_parallel"
        hint = "it splits by rows (tensor_parallel) or by layers (pipeline_parallel), not by both"
        yield Problem(code="field_unsupported", field="profile.pipeline_parallel", text=text, hint=hint)


def _cache_type(profile: Profile) -> str | None:
    word = profile.kv_cache_dtype if given(profile, "kv_cache_dtype") else None
    return _CACHE_WORDS.get(word, word) if word is not None else None


def _split(profile: Profile) -> str | None:
    """Without parallel sizes it splits by layers, by itself."""
    if profile.tensor_parallel > 1:
        return "row"
    return "layer" if profile.pipeline_parallel > 1 else None


def _python_numbers(profile: Profile) -> list[Word]:
    """The same for llama-cpp-python. A cache of fewer bits needs flash attention, which is off there by default."""
    cache, split = _cache_type(profile), _split(profile)
    number = None if cache is None else CACHE_TYPES[cache]
    words = [*asked("--type_k", number), *asked("--type_v", number)]
    if cache is not None and cache not in _WHOLE:
        words += ours("--flash_attn", "true")
    return words + asked("--split_mode", None if split is None else SPLIT_MODES[split])
