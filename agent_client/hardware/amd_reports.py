"""What amd-smi and rocm-smi print as JSON → plain values. Pure. A word in place of a number is an absent number."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_client.hardware import report_values as values

_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What does not change while the driver runs. `serial`: 16 hexadecimal digits, the card's unique id."""

    index: int
    name: str | None = None
    gfx: str | None = None
    bus: str | None = None
    slot: str | None = None
    memory_mib: int | None = None
    serial: str | None = None
    driver: str | None = None
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    index: int
    memory_mib: int | None = None
    used_mib: int | None = None
    busy_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    ecc_uncorrectable: int | None = None


def parse_static(text: str) -> tuple[Card, ...] | None:
    """`amd-smi static --json`; None when there is no such report in the text."""
    entries = _entries(text)
    return None if entries is None else tuple(_card(index, entry) for index, entry in entries.items())


def parse_metric(text: str) -> tuple[Metric, ...] | None:
    """`amd-smi metric --json`; None when there is no such report in the text."""
    entries = _entries(text)
    return None if entries is None else tuple(_metric(index, entry) for index, entry in entries.items())


def parse_xgmi_links(text: str) -> dict[int, frozenset[int]] | None:
    """`amd-smi topology --json` → the GPUs that each one reaches over XGMI directly."""
    entries = _entries(text)
    if entries is None:
        return None
    return {index: _xgmi_peers(entry.get("links")) for index, entry in entries.items()}


def parse_rocm(text: str) -> tuple[tuple[Card, ...], tuple[Metric, ...]] | None:
    """`rocm-smi … --json`: strings under names that differ by release and vendor's build."""
    report = values.find(
        text, lambda data: isinstance(data, dict) and any(_card_number(key) is not None for key in data)
    )
    if report is None:
        return None
    system = report.get("system")
    driver = values.word(system.get("Driver version")) if isinstance(system, dict) else None
    cards, metrics = {}, {}
    for key, value in report.items():
        index = _card_number(key)
        if index is None or index in cards or not isinstance(value, dict):
            continue
        fields = {str(name).strip().lower(): field for name, field in value.items()}
        cards[index] = _rocm_card(index, fields, driver)
        metrics[index] = _rocm_metric(index, fields)
    return tuple(cards.values()), tuple(metrics.values())


def _card(index: int, entry: Mapping[str, Any]) -> Card:
    asic, bus, vram = (_group(entry, name) for name in ("asic", "bus", "vram"))
    driver = _group(entry, "driver")
    size = next((each for each in (vram.get("size"), vram.get("vram_size"), entry.get("vram_size")) if each), None)
    return Card(
        index=index,
        name=values.word(asic.get("market_name")),
        gfx=values.word(asic.get("target_graphics_version")),
        bus=values.address(bus.get("bdf")),
        slot=values.word(bus.get("slot_type")),
        memory_mib=values.size_mib(size) or None,
        serial=values.serial(asic.get("asic_serial")),
        driver=values.word(driver.get("version")) or values.word(driver.get("driver_version")),
        numa=values.whole(_group(entry, "numa").get("node"), most=4095),
    )


def _metric(index: int, entry: Mapping[str, Any]) -> Metric:
    memory, temperature = _group(entry, "mem_usage"), _group(entry, "temperature")
    hotspot = values.number(temperature.get("hotspot"))
    return Metric(
        index=index,
        memory_mib=values.size_mib(memory.get("total_vram")) or None,
        used_mib=values.size_mib(memory.get("used_vram")),
        busy_percent=values.number(_group(entry, "usage").get("gfx_activity")),
        temperature_celsius=hotspot if hotspot is not None else values.number(temperature.get("edge")),
        power_watts=values.number(_group(entry, "power").get("socket_power")),
        ecc_uncorrectable=values.whole(_group(entry, "ecc").get("total_uncorrectable_count")),
    )


def _rocm_card(index: int, fields: Mapping[str, Any], driver: str | None) -> Card:
    names = [values.word(fields.get(key)) for key in ("card series", "device name", "card model")]
    return Card(
        index=index,
        name=next((name for name in names if name and not re.fullmatch(r"0x[0-9a-fA-F]+", name)), None),
        gfx=values.word(fields.get("gfx version")),
        bus=values.address(fields.get("pci bus")),
        memory_mib=_rocm_mib(fields, "vram total memory") or None,
        serial=values.serial(fields.get("unique id")),
        driver=driver,
    )


def _rocm_metric(index: int, fields: Mapping[str, Any]) -> Metric:
    power = ("current socket graphics package power (w)", "average graphics package power (w)")
    heat = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")
    return Metric(
        index=index,
        memory_mib=_rocm_mib(fields, "vram total memory") or None,
        used_mib=_rocm_mib(fields, "vram total used memory"),
        busy_percent=_first_number(fields, ("gpu use (%)", "dcu use (%)")),
        temperature_celsius=_first_number(fields, heat),
        power_watts=_first_number(fields, power),
    )


def _rocm_mib(fields: Mapping[str, Any], name: str) -> int | None:
    """The unit is part of the name."""
    for key, value in fields.items():
        match = re.fullmatch(re.escape(name) + r" \((b|kib|mib|gib)\)", key)
        number = values.number(value) if match else None
        if match and number is not None:
            return values.mib(number, match[1].upper())
    return None


def _first_number(fields: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    return next((number for name in names if (number := values.number(fields.get(name))) is not None), None)


def _xgmi_peers(links: Any) -> frozenset[int]:
    found = set()
    for link in links if isinstance(links, list) else []:
        if not isinstance(link, dict) or link.get("link_type") != "XGMI" or link.get("link_status") == "DISABLED":
            continue
        peer = values.whole(link.get("gpu"), most=_MOST_GPUS)
        if peer is not None:
            found.add(peer)
    return frozenset(found)


def _entries(text: str) -> dict[int, Mapping[str, Any]] | None:
    """GPU number → its entry: a list before amd-smi 26, `{"gpu_data": [...]}` since."""
    report = values.find(text, _is_report)
    if report is None:
        return None
    entries: dict[int, Mapping[str, Any]] = {}
    for entry in report["gpu_data"] if isinstance(report, dict) else report:
        index = values.whole(entry.get("gpu"), most=_MOST_GPUS) if isinstance(entry, dict) else None
        if index is not None:
            entries.setdefault(index, entry)
    return entries


def _is_report(data: Any) -> bool:
    entries = data.get("gpu_data") if isinstance(data, dict) else data
    return isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)


def _group(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A group of values; `"usage": "N/A"` is an empty one."""
    value = entry.get(name)
    return value if isinstance(value, dict) else {}


def _card_number(key: Any) -> int | None:
    match = re.fullmatch(r"card([0-9]{1,3})", key) if isinstance(key, str) else None
    return int(match[1]) if match else None
