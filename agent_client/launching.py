"""What this node adds to an order, so that an adapter can make a command of it."""

import contextlib
import os
import sys
from pathlib import Path

from agent_client.config import AgentConfig
from agent_client.engines import LaunchSpec, Origin
from agent_client.profile import Profile
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode

#: Run as files, not as modules: an engine's working directory is not the agent's.
PROGRAMS = str(Path(__file__).resolve().parent / "programs")


def launch_spec(
    config: AgentConfig, spec: ShardSpec, profile: Profile, *, ports: range, command: tuple[str, ...]
) -> LaunchSpec:
    """`ports`: the one to serve on, then those between the engine's own processes."""
    policy = (config.policy.engines or {}).get(profile.engine)
    meeting = None
    if spec.rendezvous_address is not None and spec.rendezvous_port is not None:
        meeting = (spec.rendezvous_address, spec.rendezvous_port)
    return LaunchSpec(
        replica=spec.replica,
        served_names=spec.served_names,
        profile=profile,
        port=ports[0],
        internal_ports=tuple(ports[1:]),
        address=config.mgmt_addr,
        rank=spec.rank,
        nodes=spec.nodes,
        gpus=spec.gpus,
        engine_key=spec.engine_key,
        command=command,
        command_origin=Origin.NODE if policy and policy.command else Origin.LLMGW,
        engine_env=policy.env if policy else {},
        fabric_env=spec.fabric_env,
        rendezvous=meeting,
        secrets=read_secrets(config),
        python=sys.executable,
        programs=PROGRAMS,
    )


def no_ports(spec: ShardSpec, ports: range, count: int) -> tuple[str, str, str]:
    """Code, sentence and hint."""
    needed, are = ("no port", "is") if count == 1 else (f"no {count} ports in a row", "are")
    hint = "widen policy.ports in the node's agent.yaml, or end what listens there"
    text = f"cannot start {spec.replica}: {needed} of {ports[0]}-{ports[-1]} {are} free"
    return FailureCode.NO_PORT.value, text, hint


def read_secrets(config: AgentConfig) -> dict[str, str]:
    """Those of the node's configuration whose files can be read; a profile that needs another is told so by name."""
    out = {}
    for name, path in config.secrets.items():
        with contextlib.suppress(OSError):
            out[name] = path.read_text(encoding="utf-8").strip()
    return out


def base_environment() -> dict[str, str]:
    """The agent's environment without what is the agent's own: no secret of its own reaches an engine."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("LLMGW_", "FLEET_", "DATABASE_URL", "DJANGO_"))}
