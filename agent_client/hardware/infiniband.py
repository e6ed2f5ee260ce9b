"""HCA ports from /sys/class/infiniband. Any file may be missing; fabrics come from the owner's labels alone."""

import re
from pathlib import Path
from typing import Any

_SOFTWARE = ("rxe", "siw")


def read(root: Path, fabrics: tuple[tuple[str, tuple[str, ...]], ...]) -> list[dict[str, Any]]:
    try:
        names = sorted((entry.name for entry in root.iterdir()), key=_natural)
    except OSError:
        return []
    return [_adapter(root / name, fabrics) for name in names if (root / name / "ports").is_dir()]


def fabric_of(hca: str, fabrics: tuple[tuple[str, tuple[str, ...]], ...]) -> str | None:
    """The first label one of whose patterns matches the whole HCA name."""
    return next((name for name, patterns in fabrics if any(re.fullmatch(p, hca) for p in patterns)), None)


def _adapter(path: Path, fabrics: tuple[tuple[str, tuple[str, ...]], ...]) -> dict[str, Any]:
    device = path / "device"
    netdevs = sorted(entry.name for entry in (device / "net").iterdir()) if (device / "net").is_dir() else []
    numa = _text(device / "numa_node")
    ports = sorted((path / "ports").iterdir(), key=lambda entry: _natural(entry.name))
    fabric = fabric_of(path.name, fabrics)
    return {
        "hca": path.name,
        "node_guid": _text(path / "node_guid"),
        "numa": int(numa) if numa and numa.isdecimal() else None,
        "bus": device.resolve().name if device.exists() else None,
        "netdev": netdevs[0] if netdevs else None,
        "firmware": _text(path / "fw_ver"),
        "virtual": path.name.startswith(_SOFTWARE) or (device / "physfn").exists(),
        "bond": "bond" in path.name,
        "ports": [_port(entry, fabric) for entry in ports if entry.name.isdecimal()],
    }


def _port(path: Path, fabric: str | None) -> dict[str, Any]:
    state = _word(_text(path / "state"))
    phys = _word(_text(path / "phys_state"))
    link = _text(path / "link_layer")
    sm_lid = _hex(_text(path / "sm_lid"))
    rate = _text(path / "rate") or ""
    match = re.match(r"([0-9.]+) Gb/sec(?: \((.*)\))?", rate)
    gid = _text(path / "gids" / "0") or ""
    problems = []
    if link == "InfiniBand" and phys == "LinkUp" and (state == "INIT" or sm_lid == 0):
        problems.append(
            {
                "code": "no_subnet_manager",
                "severity": "warning",
                "text": "no subnet manager: the link is up, but the port has no address",
                "hint": "start OpenSM on this fabric",
            }
        )
    elif state is not None and state not in ("ACTIVE", "ACTIVE_DEFER"):
        text = f"port is {state}" + (f" ({phys})" if phys else "")
        problems.append({"code": "port_down", "severity": "warning", "text": text, "hint": "check the cable"})
    return {
        "port": int(path.name),
        "state": state,
        "phys_state": phys,
        "rate_gbps": float(match.group(1)) if match else None,
        "rate_name": match.group(2) if match else None,
        "link_layer": link,
        "lid": _hex(_text(path / "lid")),
        "sm_lid": sm_lid,
        "gid_prefix": ":".join(gid.split(":")[:4]) if gid and not re.fullmatch(r"[0:]*", gid) else None,
        "gid_index": None,
        "fabric": fabric,
        "problems": problems,
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip() or None
    except OSError:
        return None


def _word(text: str | None) -> str | None:
    """`4: ACTIVE` → `ACTIVE`."""
    return text.partition(":")[2].strip() if text and ":" in text else text


def _hex(text: str | None) -> int | None:
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None


def _natural(name: str) -> list[Any]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]
