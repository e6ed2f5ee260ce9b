"""llama.cpp: `llama-server`, the launcher around the `xllamacpp` wheel, or llama-cpp-python's server."""

from enum import StrEnum

from agent_client.engines.base import Launch, LaunchSpec, Readiness, cards, environment, refuse, refuse_env
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
    command = spec.command or ("llama-server",)
    if variant(command) is Variant.LLAMA_CPP_PYTHON:
        return _plan_python(spec, command)
    profile = spec.profile
    words = refused(profile.extra_args, options(command), OWNED_FLAGS)
    refuse(spec, (*words, *refuse_env(spec, OWNED_ENV)))
    parallel = int(profile.options.get("parallel", 4))
    context = profile.max_model_len
    argv = [*command, "--model", profile.model, "--host", spec.address, "--port", str(spec.port)]
    argv += ["--alias", ",".join(spec.served_names), "--parallel", str(parallel), "--metrics"]
    # llama-server shares -c among its slots: a request may use context x 1 only when each slot has that much.
    argv += ["--ctx-size", str(context * parallel)] if context else []
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["LLAMA_API_KEY"] = spec.engine_key
    return Launch(argv=(*argv, *profile.extra_args), env=environment(spec, owned, secrets=["LLAMA_API_KEY"]))


def _plan_python(spec: LaunchSpec, command: tuple[str, ...]) -> Launch:
    """It answers one request at a time and takes its key as API_KEY (pydantic settings read the environment)."""
    profile = spec.profile
    words = refused(profile.extra_args, options(command), OWNED_PYTHON_FLAGS)
    refuse(spec, (*words, *refuse_env(spec, OWNED_PYTHON_ENV)))
    argv = [*command, "--model", profile.model, "--host", spec.address, "--port", str(spec.port)]
    argv += ["--model_alias", spec.served_names[0]]
    argv += ["--n_ctx", str(profile.max_model_len)] if profile.max_model_len else []
    owned = cards(spec) if profile.gpus_total else {}
    if spec.engine_key:
        owned["API_KEY"] = spec.engine_key
    env = environment(spec, owned, secrets=["API_KEY"])
    readiness = Readiness(health_path="/v1/models", one_at_a_time=True)
    return Launch(argv=(*argv, *profile.extra_args), env=env, readiness=readiness)
