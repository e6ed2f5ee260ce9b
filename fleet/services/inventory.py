"""Brings GPU and adapter rows into line with what an agent reports. Rows of things that went stay, marked absent."""

import ipaddress
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from fleet.domain.states import Severity
from fleet.models import Adapter, Fabric, Gpu, Node
from fleet.services.events import record


def store(node: Node, inventory: Mapping[str, Any], fingerprint: str, *, now: datetime) -> None:
    """Within the caller's transaction. Unknown keys pass, absent figures stay null."""
    # The id of a rack's NVLink domain means the same on all its nodes; that of any other something on its node alone.
    racks = {str(each.get("id")) for each in _entries(inventory, "domains") if each.get("kind") == "rack"}
    _store_gpus(node, _entries(inventory, "gpus"), racks)
    _store_adapters(node, _entries(inventory, "adapters"))
    Node.objects.filter(pk=node.pk).update(
        inventory=dict(inventory), inventory_fingerprint=fingerprint[:64], inventory_at=now
    )


def _entries(inventory: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = inventory.get(key)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _store_gpus(node: Node, reported: list[Mapping[str, Any]], racks: Collection[str]) -> None:
    known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node=node)}
    by_bus = {gpu.bus: gpu.uuid for gpu in known.values() if gpu.bus and gpu.present and not gpu.mig}
    seen: set[str] = set()
    for entry in sorted(reported, key=lambda each: not each.get("uuid")):
        # A card that can't be read may have no UUID; its place on the bus still names it.
        bus = str(entry.get("bus") or "")
        uuid = str(entry.get("uuid") or by_bus.get(bus) or bus or f"index-{entry.get('index')}")[:100]
        if uuid in seen:
            continue
        seen.add(uuid)
        values = _gpu_values(entry)
        values["spans_nodes"] = values["domain"] in racks
        gpu = known.get(uuid)
        if gpu is not None and entry.get("uuid") is None:
            kept = ("name", "gpu_class", "memory_total_mib", "compute_capability", "index")
            values |= {name: getattr(gpu, name) for name in kept if values[name] in ("", None)}
        _tell_problems(node, gpu, values)
        if gpu is None:
            Gpu.objects.create(node=node, uuid=uuid, **values)
        elif changed := {name: value for name, value in values.items() if getattr(gpu, name) != value}:
            Gpu.objects.filter(pk=gpu.pk).update(**changed)
    for uuid, gpu in known.items():
        if uuid not in seen and gpu.present:
            Gpu.objects.filter(pk=gpu.pk).update(present=False)
            record(
                "gpu_gone",
                f"{node.name}: GPU {gpu.index} ({gpu.gpu_class or gpu.name}, {uuid}) is no longer reported",
                severity=Severity.WARNING,
                node_id=node.pk,
                data={"uuid": uuid},
            )


def _tell_problems(node: Node, gpu: Gpu | None, values: Mapping[str, Any]) -> None:
    """One event for each problem that came or went."""
    before = _by_code(gpu.problems if gpu and gpu.present else [])
    after = _by_code(values["problems"])
    name = f"{node.name} GPU {values['index']} ({values['gpu_class'] or values['name']})"
    for code in after.keys() - before.keys():
        worst = after[code].get("severity") == "unplaceable"
        severity = Severity.ERROR if worst else Severity.WARNING
        text = f"{name}: {after[code].get('text') or code}" + ("; nothing is placed on it" if worst else "")
        record("gpu_problem", text[:1000], severity=severity, node_id=node.pk, data={"code": code})
    for code in before.keys() - after.keys():
        record("gpu_problem_gone", f"{name}: no longer {code}", node_id=node.pk, data={"code": code})


def _by_code(problems: Any) -> dict[str, Mapping[str, Any]]:
    return {str(each.get("code")): each for each in problems if isinstance(each, Mapping)}


def _gpu_values(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "index": _integer(entry.get("index")),
        "name": _text(entry.get("name"), 200),
        "gpu_class": _text(entry.get("class"), 100),
        "bus": _text(entry.get("bus"), 20),
        "memory_total_mib": _integer(entry.get("memory_total_mib")),
        "memory_used_mib": _integer(entry.get("memory_used_mib")),
        "compute_capability": _text(entry.get("compute_capability"), 10),
        "numa": _integer(entry.get("numa")),
        "domain": _text(entry.get("domain"), 100),
        "mig": entry.get("mig") if isinstance(entry.get("mig"), Mapping) else None,
        "placeable": bool(entry.get("placeable", True)),
        "present": True,
        "problems": entry.get("problems") if isinstance(entry.get("problems"), list) else [],
        "processes": entry.get("processes") if isinstance(entry.get("processes"), list) else [],
    }


def _store_adapters(node: Node, reported: list[Mapping[str, Any]]) -> None:
    known = {(a.hca, a.port): a for a in Adapter.objects.filter(node=node)}
    seen: set[tuple[str, int]] = set()
    for adapter in reported:
        for port in _entries(adapter, "ports"):
            hca, number = _text(adapter.get("hca"), 100), _integer(port.get("port"))
            if not hca or number is None or number < 0 or (hca, number) in seen:
                continue
            seen.add((hca, number))
            values = _port_values(adapter, port)
            row = known.get((hca, number))
            if row is None:
                Adapter.objects.create(node=node, hca=hca, port=number, **values)
            elif changed := {name: value for name, value in values.items() if getattr(row, name) != value}:
                for name, value in changed.items():
                    setattr(row, name, value)
                row.save(update_fields=list(changed))
    for key, row in known.items():
        if key not in seen and row.present:
            Adapter.objects.filter(pk=row.pk).update(present=False)


def _port_values(adapter: Mapping[str, Any], port: Mapping[str, Any]) -> dict[str, Any]:
    label = _text(port.get("fabric"), 100)
    rate = port.get("rate_gbps")
    netdev = _text(port.get("netdev") or adapter.get("netdev"), 100)
    return {
        "state": _text(port.get("state"), 40),
        "link_layer": _text(port.get("link_layer"), 40),
        "rate_gbps": float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None,
        "netdev": netdev,
        "address": _address(port["address"]) if isinstance(port.get("address"), str) else None,
        "gid_prefix": _text(port.get("gid_prefix"), 64),
        "gid_index": _integer(port.get("gid_index")),
        "numa": _integer(adapter.get("numa")),
        "fabric": Fabric.objects.get_or_create(name=label)[0] if label else None,
        "problems": port.get("problems") if isinstance(port.get("problems"), list) else [],
        "present": True,
    }


def _address(text: str) -> str | None:
    """An IP address, or empty for none; what is neither is not known."""
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        return None


def _text(value: Any, longest: int) -> str:
    return "" if value is None else str(value)[:longest]


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None
