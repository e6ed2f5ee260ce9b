"""Engine adapters: what is to run → argv, environment and readiness. Pure; one file per kind of engine."""

from collections.abc import Mapping

from agent_client.engines import custom, echo, llamacpp, sglang, vllm
from agent_client.engines.base import Adapter, EnvVar, Launch, LaunchSpec, PlanError, Readiness
from agent_client.profile import EngineKind

ADAPTERS: Mapping[EngineKind, Adapter] = {
    EngineKind.VLLM: vllm.plan,
    EngineKind.SGLANG: sglang.plan,
    EngineKind.LLAMACPP: llamacpp.plan,
    EngineKind.ECHO: echo.plan,
    EngineKind.CUSTOM: custom.plan,
}

#: The program looked for when the node's policy names no command; echo runs with the agent's own Python, and so does
#: SGLang where it is installed beside the agent.
DEFAULT_COMMANDS: Mapping[EngineKind, tuple[str, ...]] = {
    EngineKind.VLLM: ("vllm", "serve"),
    EngineKind.LLAMACPP: ("llama-server",),
}


def plan(spec: LaunchSpec) -> Launch:
    """The launch of one shard; raises PlanError with every problem."""
    return ADAPTERS[spec.profile.engine](spec)


__all__ = ["ADAPTERS", "DEFAULT_COMMANDS", "EnvVar", "Launch", "LaunchSpec", "PlanError", "Readiness", "plan"]
