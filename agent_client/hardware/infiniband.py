"""HCAs from /sys/class/infiniband. Any file may be missing; fabrics come from the owner's labels alone."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_client.hardware import sysfs
from agent_client.hardware.labels import ACTIVE, Fabrics, fabric_of, missing_adapters
from agent_client.hardware.ports import Owner, find_problems, read_port

__all__ = ["fabric_of", "missing_adapters", "read"]

#: A name that can stand in NCCL_IB_HCA; the kernel gives no other.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")
#: hca_type is the PCI device id in decimal. Virtual functions have ids of their own, which a guest sees as well:
#: ConnectX-2 and 3, Connect-IB, ConnectX-4, 4 Lx, 5, 5 Ex, 6, any later one, BlueField (PCI tables of mlx4, mlx5).
_VIRTUAL_FUNCTION_TYPES = frozenset(
    f"MT{number}" for number in (4098, 4100, 4114, 4116, 4118, 4120, 4122, 4124, 4126, 41683)
)
#: Cards have one or two sockets; more ports are planes of one link or stand for virtual functions.
_MOST_SOCKETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    path: Path
    bus: str | None
    hca_type: str | None
    driver: str


def read(root: Path, fabrics: Fabrics) -> list[dict[str, Any]]:
    """All adapters with at least one port, in the order of their numbers."""
    devices = [_device(root / name) for name in sysfs.names(root) if _NAME.fullmatch(name)]
    adapters = [_adapter(device, fabrics) for device in devices if not _is_management(device, devices)]
    return [adapter for adapter in adapters if adapter["ports"]]


def _device(path: Path) -> _Device:
    linked = os.path.exists(path / "device")
    driver = path / "device" / "driver"
    return _Device(
        path=path,
        bus=sysfs.pci_address(path / "device" if linked else path),
        hca_type=sysfs.text(path / "hca_type"),
        driver=os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else "",
    )


def _is_management(device: _Device, devices: list[_Device]) -> bool:
    """`smi1` shows the planes of a multi-plane adapter for subnet management: the adapter itself is another entry."""
    if not re.fullmatch(r"smi[0-9]*", device.path.name):
        return False
    others = [other for other in devices if not other.path.name.startswith("smi")]
    return device.bus is None or any(other.bus in (None, device.bus) for other in others)


def _adapter(device: _Device, fabrics: Fabrics) -> dict[str, Any]:
    path = device.path
    netdevs = _netdevs(path / "device" / "net")
    kind = _kind(device)
    mlx5 = path.name.startswith("mlx5") or device.driver == "mlx5_core"
    owner = Owner(transport=_transport(device), fabric=fabric_of(path.name, fabrics), netdevs=netdevs)
    names = [name for name in sysfs.names(path / "ports") if re.fullmatch(r"[1-9][0-9]{0,2}", name)]
    ports = [read_port(path / "ports" / name, owner) for name in names]
    works = len(ports) > _MOST_SOCKETS and any(port["state"] in ACTIVE for port in ports)
    for port in ports:
        port["problems"] = find_problems(port, mlx5=mlx5, spare=works)
    named = [port["netdev"] for port in ports if port["netdev"]]
    return {
        "hca": path.name,
        "hca_type": device.hca_type,
        "node_guid": _guid(sysfs.text(path / "node_guid")),
        "numa": _numa(path / "device"),
        "bus": device.bus,
        "netdev": named[0] if named else next((name for name, _ in netdevs), None),
        "firmware": _known(sysfs.text(path / "fw_ver")),
        "kind": kind,
        "virtual": kind != "physical",
        "parent": sysfs.pci_address(path / "device" / "physfn") if os.path.exists(path / "device" / "physfn") else None,
        "bond": "bond" in path.name or any(_is_bond(path.parent, name) for name in named),
        "ports": ports,
    }


def _kind(device: _Device) -> str:
    """physical, virtual_function (SR-IOV), sub_function, or software: made by the kernel over some network device."""
    path = device.path
    real = os.path.realpath(path)
    if path.name.startswith(("rxe", "siw")) or "/devices/virtual/" in real or os.path.exists(path / "parent"):
        return "software"
    if re.search(r"/mlx5_core\.sf\.[0-9]+(/|\Z)", os.path.realpath(path / "device")):
        return "sub_function"
    if os.path.exists(path / "device" / "physfn") or device.hca_type in _VIRTUAL_FUNCTION_TYPES:
        return "virtual_function"
    return "physical"


def _transport(device: _Device) -> str | None:
    """What the link layer hides: Omni-Path and iWARP say "InfiniBand" too. None: as the link layer says."""
    name, driver = device.path.name, device.driver
    node_type = sysfs.text(device.path / "node_type") or ""
    if driver == "hfi1" or name.startswith(("hfi1", "opap")):
        return "omnipath"
    if driver == "efa" or name.startswith("efa"):
        return "efa"
    if driver == "i40iw" or "RNIC" in node_type or name.startswith(("i40iw", "iwp", "siw", "cxgb")):
        return "iwarp"
    return None


def _netdevs(path: Path) -> tuple[tuple[str, int | None], ...]:
    """The adapter's own network devices and their zero-based ports; not those that stand for virtual functions."""
    names = [name for name in sysfs.names(path) if name.isascii() and name.isprintable()]
    own = [name for name in names if not re.search(r"[vs]f[0-9]", sysfs.text(path / name / "phys_port_name") or "")]
    return tuple((name, sysfs.natural_number(path / name / "dev_port")) for name in own)


def _numa(device: Path) -> int | None:
    """The CPU node; a sub-function has none of its own, the PCI device above it has."""
    own = sysfs.natural_number(device / "numa_node")
    return own if own is not None else sysfs.natural_number(Path(os.path.realpath(device)).parent / "numa_node")


def _is_bond(infiniband: Path, netdev: str) -> bool:
    return os.path.isdir(infiniband.parent / "net" / netdev / "bonding")


def _guid(text: str | None) -> str | None:
    """All zero (EFA) is no identity."""
    return text if text and _GUID.fullmatch(text) and text.strip("0:") else None


def _known(text: str | None) -> str | None:
    return None if text is None or text.upper() in ("N/A", "UNKNOWN") else text
