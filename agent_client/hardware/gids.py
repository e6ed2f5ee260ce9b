"""The GID table of a port and which of its entries RoCE should use. An index is computed per port, never a habit."""

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from agent_client.hardware import sysfs

_FORM = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")
_LINK_LOCAL_IPV4 = ipaddress.IPv4Network("169.254.0.0/16")
ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    index: int
    gid: str
    type: str | None = None  # "IB/RoCE v1" on InfiniBand just means InfiniBand
    netdev: str | None = None

    @property
    def prefix(self) -> str:
        return ":".join(self.gid.split(":")[:4])


def read_table(port: Path) -> tuple[Gid, ...]:
    """The entries in use, by index. The GID comes first: types and ndevs of an empty entry fail with EINVAL."""
    found = []
    for name in sysfs.names(port / "gids"):
        gid = (sysfs.text(port / "gids" / name) or "").lower()
        if not re.fullmatch(r"[0-9]{1,5}", name) or not _FORM.fullmatch(gid) or _empty(gid):
            continue
        kind = sysfs.text(port / "gid_attrs" / "types" / name)
        netdev = sysfs.text(port / "gid_attrs" / "ndevs" / name)
        found.append(Gid(index=int(name), gid=gid, type=kind, netdev=netdev))
    return tuple(found)


def choose_roce(table: Iterable[Gid], own_netdevs: Collection[str] = ()) -> Gid | None:
    """The RoCE v2 entry with an IPv4 address, else one with a global IPv6 address; never a link-local one.

    Among equals the port's own network device goes before devices stacked on it (VLAN, bond), then the lowest index.
    None: leave the choice to the communication library.
    """
    ranked = [
        (family, gid.netdev not in own_netdevs, gid.index, gid)
        for gid in table
        if gid.type == ROCE_V2 and (family := _family(gid.gid)) is not None
    ]
    return min(ranked, key=lambda entry: entry[:3])[3] if ranked else None


def _family(gid: str) -> int | None:
    """0 for a usable IPv4 address, 1 for a usable IPv6 one, None for what can't be routed to."""
    address = ipaddress.IPv6Address(gid)
    mapped = address.ipv4_mapped
    if mapped is not None:
        unusable = mapped in _LINK_LOCAL_IPV4 or mapped.is_loopback or mapped.is_unspecified or mapped.is_multicast
        return None if unusable else 0
    if address.is_link_local or address.is_site_local or address.is_multicast or int(address) < 2**32:
        return None
    return 1


def _empty(gid: str) -> bool:
    """All zero, or the default subnet prefix with nothing behind it."""
    return not gid.removeprefix("fe80").strip("0:")
