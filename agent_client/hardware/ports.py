"""One port of an HCA: what its files say, and what is wrong with it. A port without a figure shows none."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_client.hardware import gids, sysfs
from agent_client.hardware.labels import ACTIVE

_STATES = ("NOP", "DOWN", "INIT", "ARMED", *ACTIVE)
_LINK_LAYERS = ("InfiniBand", "Ethernet", "Unknown")
_RATE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([^()]{1,40})\))?")
_SPEED = re.compile(r"([0-9]{1,2})X(?: ([A-Z0-9]+))?")
#: Two lanes are sold as such since HDR (HDR100, NDR200); below that they are half of a four-lane link.
_FOUR_LANE_SPEEDS = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR")
_DOWN_HINTS = {
    "Polling": "no cable, or the far end is off: check both",
    "Disabled": "the port is switched off: enable it, with ibportstate or ip link",
    "Sleep": "the port sleeps: wake it with ibportstate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What the adapter knows that its ports need."""

    transport: str | None  # None: as the link layer says
    fabric: str | None
    netdevs: tuple[tuple[str, int | None], ...]  # name and zero-based port, where told


def read_port(path: Path, owner: Owner) -> dict[str, Any]:
    link_layer = sysfs.text(path / "link_layer")
    link_layer = link_layer if link_layer in _LINK_LAYERS else None
    transport = owner.transport or {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(link_layer or "")
    rate_gbps, rate_name = parse_rate(sysfs.text(path / "rate"))
    number = int(path.name)
    own = own_netdevs(number, owner.netdevs)
    table = gids.read_table(path)
    chosen = gids.choose_roce(table, own) if transport == "roce" and link_layer == "Ethernet" else None
    state = after_number(sysfs.text(path / "state"))
    return {
        "port": number,
        "state": state if state in _STATES else None,
        "phys_state": after_number(sysfs.text(path / "phys_state")),
        "rate_gbps": rate_gbps,
        "rate_name": rate_name,
        "link_layer": link_layer,
        "transport": transport,
        "lid": hexadecimal(sysfs.text(path / "lid")),
        "sm_lid": hexadecimal(sysfs.text(path / "sm_lid")),
        "gid_prefix": table[0].prefix if table else None,
        "gid_index": chosen.index if chosen else None,
        "gid_type": chosen.type if chosen else None,
        "netdev": (chosen.netdev if chosen else None) or (own[0] if own else None),
        "fabric": owner.fabric,
        "problems": [],
    }


def find_problems(port: dict[str, Any], *, mlx5: bool = False, spare: bool = False) -> list[dict[str, str]]:
    """`spare`: one of many ports of an adapter that works through others; that it is down is normal."""
    out = []
    lost_manager = _no_manager(port)
    if lost_manager is not None:
        out.append(lost_manager)
    state, phys = port["state"], port["phys_state"]
    waits_for_manager = lost_manager is not None and state == "INIT"
    if state is not None and state not in ACTIVE and not waits_for_manager and not spare:
        text = f"port is {state}" + (f" ({phys})" if phys else "")
        out.append(_problem("port_down", text, _DOWN_HINTS.get(phys or "", "check the cable and the far end")))
    degraded = _degraded(port, mlx5=mlx5)
    if degraded is not None:
        out.append(_problem("link_degraded", degraded, "reseat or change the cable or its transceiver"))
    return out


def _no_manager(port: dict[str, Any]) -> dict[str, str] | None:
    """Only where a subnet manager gives addresses: on Ethernet and iWARP lid 0 and sm_lid 0 are normal."""
    manager = {
        "infiniband": "start OpenSM on this fabric",
        "omnipath": "start the Omni-Path fabric manager",
    }.get(port["transport"] or "")
    if manager is None or port["link_layer"] != "InfiniBand" or port["phys_state"] != "LinkUp":
        return None
    if port["state"] != "INIT" and port["sm_lid"] != 0:
        return None
    return _problem("no_subnet_manager", "no subnet manager: the link is up, but the port has no address", manager)


def _degraded(port: dict[str, Any], *, mlx5: bool) -> str | None:
    """What the rate gives away. Ethernet has one-lane links by design, and the rate of a down port means nothing."""
    if port["phys_state"] == "LinkErrorRecovery":
        return "the link is in error recovery"
    up = port["state"] in ACTIVE or port["phys_state"] == "LinkUp"
    match = _SPEED.fullmatch(port["rate_name"] or "")
    if not up or match is None or port["transport"] not in ("infiniband", "omnipath"):
        return None
    lanes, speed = int(match[1]), match[2]
    figure = f"{port['rate_gbps']:g} Gb/s ({port['rate_name']})"
    if lanes == 1 or (lanes == 2 and speed in _FOUR_LANE_SPEEDS):
        return f"the link runs at {figure}: {lanes} of 4 lanes"
    if mlx5 and speed == "SDR":
        return f"the link runs at {figure}: the speed that is left when training for all others failed"
    return None


def own_netdevs(port: int, netdevs: Collection[tuple[str, int | None]]) -> tuple[str, ...]:
    """The network devices of this port: those that say so, else the adapter's only one."""
    told = tuple(name for name, index in netdevs if index == port - 1)
    if told:
        return told
    return tuple(name for name, _ in netdevs) if port == 1 and len(netdevs) == 1 else ()


def parse_rate(text: str | None) -> tuple[float | None, str | None]:
    """`200 Gb/sec (4X HDR)` → 200.0 and `4X HDR`; the name may be missing."""
    match = _RATE.fullmatch(text or "")
    return (float(match[1]), match[2]) if match else (None, None)


def after_number(text: str | None) -> str | None:
    """`4: ACTIVE` → `ACTIVE`."""
    match = re.fullmatch(r"[0-9]{1,3}: *([A-Za-z][A-Za-z_ ]{0,38})", text or "")
    return match[1] if match else None


def hexadecimal(text: str | None) -> int | None:
    return int(text, 16) if text and re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}", text) else None


def _problem(code: str, text: str, hint: str) -> dict[str, str]:
    return {"code": code, "severity": "warning", "text": text, "hint": hint}
