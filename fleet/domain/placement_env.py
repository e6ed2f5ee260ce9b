"""What a rank is told of its network: from the adapters of that node on that fabric, and from its own address.

A value of the profile wins over the fabric's, the fabric's over the automatic one; each keeps where it came from.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from agent_client.profile import EngineKind, Profile, SecretRef
from agent_client.profile.hidden import looks_secret
from fleet.domain.placement_types import Setting
from fleet.domain.types import NodeView, PortView

_HOST_IP = {EngineKind.VLLM: "VLLM_HOST_IP", EngineKind.SGLANG: "SGLANG_HOST_IP"}


def ports_on(node: NodeView, fabric: str) -> tuple[PortView, ...]:
    """Active ports on a fabric, of one link layer: NCCL must not mix InfiniBand and Ethernet."""
    found = [port for port in node.ports if fabric and port.fabric == fabric and port.active]
    layers = {port.ethernet for port in found}
    if len(layers) > 1:
        found = [port for port in found if not port.ethernet]
    return tuple(sorted(found, key=lambda port: (_natural(port.hca), port.port)))


def meeting_address(nodes: Sequence[NodeView], fabric: str) -> tuple[str, str]:
    """The head's address on the fabric where every rank has one there, else where the control plane reaches it.

    With it where it came from.
    """
    on_fabric = [_address(node, fabric) for node in nodes]
    return (on_fabric[0], f"fabric {fabric}") if all(on_fabric) else (nodes[0].mgmt_addr, "automatic")


def settings(profile: Profile, node: NodeView, fabric: str, peers: Iterable[NodeView]) -> tuple[Setting, ...]:
    """Of fabric and node, by name, without what the profile says. `peers`: all nodes of the replica."""
    ports = ports_on(node, fabric)
    rows: list[Setting] = []
    if ports:
        origin = f"fabric {fabric}"
        # "=": exact names, since mlx5_1 alone is also a prefix of mlx5_10.
        rows.append(
            Setting(name="NCCL_IB_HCA", value="=" + ",".join(f"{p.hca}:{p.port}" for p in ports), origin=origin)
        )
        netdevs = list(dict.fromkeys(port.netdev for port in ports if port.netdev and port.address != ""))
        if netdevs and all(_reachable(peer, fabric) for peer in peers):
            rows.append(Setting(name="NCCL_SOCKET_IFNAME", value="=" + ",".join(netdevs), origin=origin))
            rows.append(Setting(name="GLOO_SOCKET_IFNAME", value=netdevs[0], origin=origin))
        index = {port.gid_index for port in ports}
        if all(port.ethernet for port in ports) and len(index) == 1 and None not in index:
            rows.append(Setting(name="NCCL_IB_GID_INDEX", value=str(index.pop()), origin=origin))
    name = _HOST_IP.get(profile.engine)
    everywhere = all(_address(peer, fabric) for peer in peers)
    address = _address(node, fabric) if everywhere else node.mgmt_addr
    if name and address:
        rows.append(Setting(name=name, value=address, origin=f"fabric {fabric}" if everywhere else "automatic"))
    return tuple(row for row in rows if row.name not in profile.env)


def effective(profile: Profile, rows: Iterable[Setting]) -> tuple[Setting, ...]:
    """With the profile's own, which win; values of secrets are never here."""
    found = {row.name: row for row in rows}
    for name, value in profile.env.items():
        secret = isinstance(value, SecretRef) or looks_secret(name)
        origin = f"secret {value.name}" if isinstance(value, SecretRef) else "profile"
        found[name] = Setting(name=name, value="(secret)" if secret else str(value), origin=origin)
    return tuple(found[name] for name in sorted(found))


def _address(node: NodeView, fabric: str) -> str:
    return next((port.address for port in ports_on(node, fabric) if port.address), "")


def _reachable(node: NodeView, fabric: str) -> bool:
    """It has a network device on the fabric that is not known to be without an address."""
    return any(port.netdev and port.address != "" for port in ports_on(node, fabric))


@lru_cache(maxsize=4096)
def _natural(text: str) -> tuple[tuple[int, str], ...]:
    parts = re.findall(r"\d+|\D+", text)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
