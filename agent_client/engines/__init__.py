"""Engine adapters: what is to run → argv, environment and readiness. Pure; one file per kind of engine."""

from collections.abc import Mapping

from agent_client.engines import custom, echo, llamacpp, sglang, vllm
from agent_client.engines.base import Adapter, Launch, LaunchSpec, Miss, PlanError, Probed, Readiness
from agent_client.engines.command import EnvVar, Origin, Word
from agent_client.profile import EngineKind, Profile

ADAPTERS: Mapping[EngineKind, Adapter] = {
    EngineKind.VLLM: vllm.plan,
    EngineKind.SGLANG: sglang.plan,
    EngineKind.LLAMACPP: llamacpp.plan,
    EngineKind.ECHO: echo.plan,
    EngineKind.CUSTOM: custom.plan,
}

_INTERNAL_PORTS = {EngineKind.VLLM: vllm.internal_ports, EngineKind.SGLANG: sglang.internal_ports}

#: The program looked for when the node's policy names no command; echo runs with the agent's own Python, and so does
#: SGLang where it is installed beside the agent.
DEFAULT_COMMANDS: Mapping[EngineKind, tuple[str, ...]] = {
    EngineKind.VLLM: ("vllm", "serve"),
    EngineKind.LLAMACPP: ("llama-server",),
}


def plan(spec: LaunchSpec) -> Launch:
    """The launch of one shard; raises PlanError with every problem."""
    return ADAPTERS[spec.profile.engine](spec)


def internal_ports(profile: Profile) -> int:
    """How many ports the engine takes beside the one that it serves on, one after the other."""
    count = _INTERNAL_PORTS.get(profile.engine)
    return count(profile) if count is not None else 0


__all__ = [
    "ADAPTERS",
    "DEFAULT_COMMANDS",
    "EnvVar",
    "Launch",
    "LaunchSpec",
    "Miss",
    "Origin",
    "PlanError",
    "Probed",
    "Readiness",
    "Word",
    "internal_ports",
    "plan",
]
