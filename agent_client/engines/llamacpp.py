"""llama.cpp: `llama-server`, the launcher around the `xllamacpp` wheel, or llama-cpp-python's server."""

from enum import StrEnum

from agent_client.engines.base import Launch, LaunchSpec, Readiness, cards, command, environment, refuse, refuse_env
from agent_client.engines.command import asked, extra, ours
from agent_client.engines.options import OptionTable, refused, table

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
    known = refused(profile.extra_args, options(program), OWNED_FLAGS)
    refuse(spec, (*known, *refuse_env(spec, OWNED_ENV)))
    parallel = int(profile.options.get("parallel", 4))
    words = [*command(spec, program), *asked("--model", profile.model)]
    words += ours("--host", spec.address, "--port", spec.port)
    words += asked("--alias", ",".join(spec.served_names))
    words += [*asked("--parallel", parallel), *ours("--metrics")]
    # llama-server shares -c among its slots: a request may use context x 1 only when each slot has that much.
    words += asked("--ctx-size", profile.max_model_len and profile.max_model_len * parallel)
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["LLAMA_API_KEY"] = spec.engine_key
    env = environment(spec, owned, secrets=["LLAMA_API_KEY"])
    return Launch(words=(*words, *extra(profile)), env=env)


def _plan_python(spec: LaunchSpec, program: tuple[str, ...]) -> Launch:
    """It answers one request at a time and takes its key as API_KEY (pydantic settings read the environment)."""
    profile = spec.profile
    known = refused(profile.extra_args, options(program), OWNED_PYTHON_FLAGS)
    refuse(spec, (*known, *refuse_env(spec, OWNED_PYTHON_ENV)))
    words = [*command(spec, program), *asked("--model", profile.model)]
    words += ours("--host", spec.address, "--port", spec.port)
    words += asked("--model_alias", spec.served_names[0])
    words += asked("--n_ctx", profile.max_model_len)
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["API_KEY"] = spec.engine_key
    env = environment(spec, owned, secrets=["API_KEY"])
    words += extra(profile)
    readiness = Readiness(health_path="/v1/models", one_at_a_time=True)
    return Launch(words=tuple(words), env=env, readiness=readiness)
