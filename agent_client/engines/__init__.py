"""Engine adapters: what is to run → argv, environment and readiness. Pure; one file per kind of engine."""

from collections.abc import Mapping

from agent_client.engines import custom, echo, llamacpp, vllm
from agent_client.engines.base import Adapter, EnvVar, Launch, LaunchSpec, PlanError, Readiness
from agent_client.profile import EngineKind, Problem

ADAPTERS: Mapping[EngineKind, Adapter] = {
    EngineKind.VLLM: vllm.plan,
    EngineKind.LLAMACPP: llamacpp.plan,
    EngineKind.ECHO: echo.plan,
    EngineKind.CUSTOM: custom.plan,
}

#: The program looked for when the node's policy names no command; echo runs with the agent's own Python.
DEFAULT_COMMANDS: Mapping[EngineKind, tuple[str, ...]] = {
    EngineKind.VLLM: ("vllm", "serve"),
    EngineKind.LLAMACPP: ("llama-server",),
}


def plan(spec: LaunchSpec) -> Launch:
    """The launch of one shard; raises PlanError with every problem."""
    adapter = ADAPTERS.get(spec.profile.engine)
    if adapter is None:
        text = f"cannot launch {spec.replica}: there is no adapter for engine {spec.profile.engine} yet"
        raise PlanError([Problem(code="engine_unsupported", field="profile.engine", text=text)])
    return adapter(spec)


__all__ = ["ADAPTERS", "DEFAULT_COMMANDS", "EnvVar", "Launch", "LaunchSpec", "PlanError", "Readiness", "plan"]
