"""What the node itself must have: room for the engine's output, adapters that are up, a free place to meet."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_client.config import AgentConfig
from agent_client.preflight.ports import is_free
from agent_client.profile import Problem, Profile
from agent_client.protocol.messages import ShardSpec
from agent_client.protocol.states import FailureCode

NETWORK = Path("/sys/class/net")
_MIB = 1024 * 1024
_ACTIVE = ("ACTIVE", "ACTIVE_DEFER")
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def problems(config: AgentConfig, profile: Profile, spec: ShardSpec, inventory: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _disk(config, spec)
    if spec.nodes > 1:
        env = {**spec.fabric_env, **{k: v for k, v in profile.env.items() if isinstance(v, str)}}
        yield from _adapters(spec, env.get("NCCL_IB_HCA", ""), inventory)
        yield from _interfaces(spec, env)
        yield from _meeting(config, spec)


def _disk(config: AgentConfig, spec: ShardSpec) -> Iterator[Problem]:
    """Two files of `log_bytes` each, while the engine writes (supervisor: rotate)."""
    folder = next(each for each in (config.state_dir, *config.state_dir.parents) if each.is_dir())
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    need = 2 * config.log_bytes
    if free < need:
        text = f"{free // _MIB} MiB are free in {config.state_dir}, its output may take {need // _MIB} MiB"
        yield _problem(spec, FailureCode.DISK_FULL, text, "free some, or lower log_bytes in agent.yaml")


def _adapters(spec: ShardSpec, named: str, inventory: Mapping[str, Any]) -> Iterator[Problem]:
    """NCCL's names: a prefix of the adapter's, or all of it after `=`, with or without `:port`; `^` leaves out."""
    ports = [(str(a["hca"]), p) for a in inventory.get("adapters") or [] for p in a.get("ports") or []]
    if not named or named.startswith("^"):
        if ports and not any(port.get("state") in _ACTIVE for _, port in ports):
            text = f"none of this node's {len(ports)} adapter ports is active, it runs on {spec.nodes} nodes"
            yield _problem(spec, FailureCode.FABRIC_DOWN, text, "see `inventory`: cable, far end, subnet manager")
        return
    exact = named.startswith("=")
    for item in named.removeprefix("=").split(","):
        name, _, number = item.strip().partition(":")
        found = [port for hca, port in ports if (hca == name if exact else hca.startswith(name))]
        found = [port for port in found if not number or str(port.get("port")) == number]
        if not found:
            text = f"its adapter {item} is not on this node"
            yield _problem(spec, FailureCode.FABRIC_DOWN, text, "see `inventory`, and `fabrics` in agent.yaml")
        elif not any(port.get("state") in _ACTIVE for port in found):
            text = f"its adapter {item} is {found[0].get('state') or 'in an unknown state'}"
            yield _problem(spec, FailureCode.FABRIC_DOWN, text, "see `inventory`: cable, far end, subnet manager")


def _interfaces(spec: ShardSpec, env: Mapping[str, str]) -> Iterator[Problem]:
    """A wrong one hangs for minutes: Gloo does not look for another."""
    try:
        there = sorted(path.name for path in NETWORK.iterdir())
    except OSError:
        return
    for variable in _INTERFACE_VARIABLES:
        named = env.get(variable, "")
        names = [] if named.startswith("^") else [name for name in named.removeprefix("=").split(",") if name]
        if names and not any(each == name or each.startswith(name) for name in names for each in there):
            text = f"{variable} is {named}, and this node has {', '.join(there)}"
            yield _problem(spec, FailureCode.FABRIC_DOWN, text, "name an interface of this node, or leave it out")


def _meeting(config: AgentConfig, spec: ShardSpec) -> Iterator[Problem]:
    port = spec.rendezvous_port
    if spec.rank == 0 and port is not None and not is_free(port, config.mgmt_addr):
        text = f"port {port}, at which its ranks meet, is taken on this node"
        yield _problem(spec, FailureCode.NO_PORT, text, "see what listens there: ss -ltnp")


def _problem(spec: ShardSpec, code: FailureCode, text: str, hint: str) -> Problem:
    return Problem(code=code.value, field="node", text=f"cannot start {spec.replica}: {text}", hint=hint)
