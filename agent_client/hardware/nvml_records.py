"""What nvml_reader.py told of each card → the inventory's GPUs, MIG devices and domains. No call, no driver."""

from collections.abc import Mapping, Sequence
from typing import Any

from agent_client.hardware import mig, nvlink, readings
from agent_client.hardware.cards import Found, Gpu, HostMemory, Process, Seen, build, merge
from agent_client.hardware.health import Figures, problem
from agent_client.hardware.nvidia_list import ListedMig, profile

_THROTTLE = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}
_OF_AN_INSTANCE = ("gi", "ci", "memory_total_mib", "memory_used_mib", "memory_reserved_mib", "sms")

Record = Mapping[str, Any]


def assemble(records: Sequence[Record], *, driver: str | None, cuda: str | None, host: HostMemory | None) -> Found:
    """The cards in NVML's order, which is PCI's, then the MIG devices."""
    cards = {record["index"]: _links(record) for record in records}
    answering = [cards[record["index"]] for record in records if record.get("links") is not None]
    domains = nvlink.domains(answering, silent=[card.bus for card in cards.values() if card not in answering])
    switched = nvlink.on_switch(answering)
    place = {index: domain["id"] for domain in domains for index in domain["gpus"]}
    gpus: list[Gpu] = []
    units: list[Gpu] = []
    for record in records:
        own, of_instances = _owners(record)
        gpu = build(_seen(record, place.get(record["index"]), own), host)
        gpu["links"] = _shown_links(record)
        gpu["sensors"] = _sensors(record)
        text = nvlink.down(cards[record["index"]], switched=switched)
        if text:
            gpu["problems"].append(problem("nvlink_down", text))
        gpus.append(gpu)
        if record.get("migs") is not None and _split(record):
            units += _units(record, gpu, of_instances, first_index=len(records) + len(units))
    return Found(source="nvml", gpus=[*gpus, *units], driver=driver, cuda=cuda, domains=domains)


def _seen(record: Record, domain: str | None, processes: Sequence[Process]) -> Seen:
    return Seen(
        index=record["index"],
        uuid=readings.uuid(record.get("uuid")),
        name=readings.known(record.get("name")),
        bus=readings.bus(record.get("bus")),
        memory_total_mib=record.get("memory_total_mib"),
        memory_used_mib=record.get("memory_used_mib"),
        memory_reserved_mib=record.get("memory_reserved_mib"),
        compute_capability=record.get("compute_capability"),
        domain=domain,
        fault=record.get("fault"),
        fault_text=record.get("fault_text"),
        figures=_figures(record),
        processes=tuple(processes),
    )


def _figures(record: Record) -> Figures:
    rows = record.get("remapped_rows") or (None, None, None, None)
    single, double = record.get("retired_single_bit"), record.get("retired_double_bit")
    throttle = record.get("throttle") or 0
    current, pending = record.get("mig_mode") or (None, None)
    fabric = _fabric(record)
    return Figures(
        recovery_action=record.get("recovery_action"),
        ecc_volatile_uncorrectable=record.get("ecc_volatile"),
        ecc_aggregate_uncorrectable=record.get("ecc_aggregate"),
        remapped_uncorrectable=rows[1],
        remap_pending=None if rows[2] is None else bool(rows[2]),
        remap_failed=None if rows[3] is None else bool(rows[3]),
        retired_pages=readings.total((single, double)),
        retired_double_bit=double,
        retired_double_bit_this_week=record.get("retired_double_bit_this_week"),
        retired_pending=None if record.get("retired_pending") is None else bool(record["retired_pending"]),
        throttled=frozenset(code for bit, code in _THROTTLE.items() if throttle & bit),
        fabric_state=nvlink.FABRIC_STATES[fabric.state] if fabric and 0 < fabric.state < 4 else None,
        fabric_status=_status(fabric, (record.get("fabric") or {}).get("status_text")),
        fabric_health=fabric.health if fabric and fabric.ready else None,
        mig_current=_mode(current),
        mig_pending=_mode(pending),
    )


def _mode(value: int | None) -> str | None:
    return None if value is None else "enabled" if value else "disabled"


def _status(fabric: nvlink.FabricInfo | None, words: str | None) -> str | None:
    if fabric is None or not fabric.supported:
        return None
    if fabric.status == 0:
        return "Success"
    return f"{words} (NVML error {fabric.status})" if words else f"NVML error {fabric.status}"


def _fabric(record: Record) -> nvlink.FabricInfo | None:
    given = record.get("fabric")
    if not given:
        return None
    cluster = str(given.get("cluster") or "")
    hyphened = "-".join(cluster[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    return nvlink.FabricInfo(
        state=given["state"],
        status=given["status"],
        cluster=hyphened if cluster.strip("0") and len(cluster) == 32 else "",
        clique=given["clique"],
        health_mask=given.get("health_mask") or 0,
        health_summary=given.get("health_summary"),
    )


def _links(record: Record) -> nvlink.CardLinks:
    links = tuple(
        nvlink.Link(up=link["up"], type=link.get("type"), bus=readings.bus(link.get("bus")))
        for link in record.get("links") or ()
    )
    return nvlink.CardLinks(
        index=record["index"],
        bus=readings.bus(record.get("bus")),
        links=links,
        fabric=_fabric(record),
        mig=_split(record),
    )


def _split(record: Record) -> bool:
    return (record.get("mig_mode") or (0,))[0] == 1


def _shown_links(record: Record) -> dict[str, int] | None:
    links = record.get("links") or ()
    return {"up": sum(link["up"] is True for link in links), "total": len(links)} if links else None


def _sensors(record: Record) -> dict[str, int | float] | None:
    """Figures of the moment; those that the card does not tell are absent."""
    power, limit = record.get("power_mw"), record.get("power_limit_mw")
    told = {
        "power_watts": None if power is None else power / 1000,
        "power_limit_watts": None if limit is None else limit / 1000,
        "temperature_celsius": record.get("temperature_celsius"),
        "utilisation_percent": record.get("utilisation_percent"),
        "persistence": record.get("persistence"),
    }
    return {name: value for name, value in told.items() if value is not None} or None


def _process(each: Record) -> Process:
    return Process(pid=each["pid"], name=each.get("name"), type=each.get("type"), memory_mib=each.get("memory_mib"))


def _owners(record: Record) -> tuple[list[Process], dict[int, list[Process]]]:
    """The card's own processes, and those of its MIG devices: with rights enough the driver tells these of both."""
    migs = record.get("migs") or ()
    devices = {(each["gi"], each.get("ci")): each["device"] for each in migs if each.get("gi") is not None}
    found = {each["device"]: [_process(process) for process in each.get("processes") or ()] for each in migs}
    own: list[Process] = []
    for each in record.get("processes") or ():
        device = devices.get((each.get("gi"), each.get("ci")))
        (own if device is None else found[device]).append(_process(each))
    return own, found


def _units(record: Record, parent: Gpu, processes: Mapping[int, list[Process]], *, first_index: int) -> list[Gpu]:
    """The card's MIG devices, each with its processes."""
    seen, listed = [], []
    for each in record["migs"]:
        figures = {name: each.get(name) for name in _OF_AN_INSTANCE}
        seen.append(mig.SeenMig(device=each["device"], **figures))
        if uuid := readings.uuid(each.get("uuid")):
            listed.append(ListedMig(device=each["device"], profile=profile(each.get("name")), uuid=uuid))
    units = mig.units(parent, seen, listed, first_index=first_index)
    for unit in units:
        unit["processes"] = [process.to_json() for process in merge(processes[unit["mig"]["device"]])]
        unit["links"] = unit["sensors"] = None
    if not units:
        parent["problems"].append(problem("mig_empty", "MIG is on and no instance is made of the card"))
    return units
