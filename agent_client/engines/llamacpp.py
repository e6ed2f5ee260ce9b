"""llama.cpp: `llama-server`, the launcher around the `xllamacpp` wheel, or llama-cpp-python's server."""

from enum import StrEnum

from agent_client.engines.base import Launch, LaunchSpec, PlanError, Readiness, cards, environment, refuse_owned

XLLAMACPP_PROGRAM = "xllamacpp_server"
LLAMA_CPP_PYTHON_MODULE = "llama_cpp.server"
OWNED_FLAGS = (
    "--host",
    "--port",
    "--model",
    "-m",
    "--alias",
    "-a",
    "--api-key",
    "--api-key-file",
    "--ctx-size",
    "-c",
    "--metrics",
    "--parallel",
    "-np",
    "--n_ctx",
    "--model_alias",
)


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


def plan(spec: LaunchSpec) -> Launch:
    problems = refuse_owned(spec, OWNED_FLAGS)
    if problems:
        raise PlanError(problems)
    profile = spec.profile
    command = spec.command or ("llama-server",)
    parallel = int(profile.options.get("parallel", 4))
    context = profile.max_model_len
    owned = cards(spec) if profile.gpus_total else {}
    if variant(command) is Variant.LLAMA_CPP_PYTHON:
        # It answers one request at a time and takes its key as API_KEY (pydantic settings read the environment).
        argv = [*command, "--model", profile.model, "--host", spec.address, "--port", str(spec.port)]
        argv += ["--model_alias", spec.served_names[0]]
        argv += ["--n_ctx", str(context)] if context else []
        if spec.engine_key:
            owned["API_KEY"] = spec.engine_key
        env = environment(spec, owned, secrets=["API_KEY"])
        readiness = Readiness(health_path="/v1/models")
        return Launch(argv=(*argv, *profile.extra_args), env=env, readiness=readiness)
    argv = [*command, "--model", profile.model, "--host", spec.address, "--port", str(spec.port)]
    argv += ["--alias", ",".join(spec.served_names), "--parallel", str(parallel), "--metrics"]
    # llama-server shares -c among its slots: a request may use context x 1 only when each slot has that much.
    argv += ["--ctx-size", str(context * parallel)] if context else []
    if spec.engine_key:
        owned["LLAMA_API_KEY"] = spec.engine_key
    return Launch(argv=(*argv, *profile.extra_args), env=environment(spec, owned, secrets=["LLAMA_API_KEY"]))
