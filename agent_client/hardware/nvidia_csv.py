"""`nvidia-smi --query-gpu … --format=csv` → cards. Pure. With or without a header, with or without units."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent_client.hardware import mig, readings
from agent_client.hardware.cards import Found, Gpu, HostMemory, Process, Seen, build
from agent_client.hardware.health import Figures, problem
from agent_client.hardware.nvidia_list import ListedCard

SOURCE = "nvidia-smi"
#: What every driver of this century's cards knows. One unknown field fails the whole call.
BASIC = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "memory.used")
#: `mig.*` and `remapped_rows.*` from 450, `compute_cap` and `memory.reserved` from 510, `gpu_recovery_action` from 570.
MORE = (*BASIC, "memory.reserved", "compute_cap", "mig.mode.current", "mig.mode.pending")
FULL = (
    *MORE,
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks_throttle_reasons.hw_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
    "gpu_recovery_action",
)
APPS = ("gpu_uuid", "pid", "process_name", "used_memory")
_THROTTLE = {
    "clocks_throttle_reasons.hw_slowdown": "hw_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown": "hw_thermal",
    "clocks_throttle_reasons.hw_power_brake_slowdown": "power_brake",
    "clocks_throttle_reasons.sw_thermal_slowdown": "sw_thermal",
}


def parse(
    text: str,
    names: Sequence[str] = (),
    *,
    listed: Iterable[ListedCard] = (),
    apps: Mapping[str, Sequence[Process]] | None = None,
    host: HostMemory | None = None,
) -> Found:
    """`names`: the fields asked for; a header line in the text goes before them. Other lines are no rows."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if rows and (header := _header(rows[0])):
        names, rows = header, rows[1:]
    cards = [dict(zip(names, cells, strict=True)) for cells in rows if _is_row(names, cells)]
    if not cards:
        return Found(source="unavailable", error="cannot read nvidia-smi's CSV: it has no row of a card")
    indexes = _indexes(cards)
    gpus = [build(_seen(row, index, apps or {}), host) for row, index in zip(cards, indexes, strict=True)]
    units = _units(gpus, {card.uuid: card for card in listed}, apps or {})
    driver = next((value for row in cards if (value := readings.known(row.get("driver_version")))), None)
    return Found(source=SOURCE, gpus=[*gpus, *units], driver=driver)


def _units(gpus: Sequence[Gpu], listed: Mapping[str, ListedCard], apps: Mapping[str, Sequence[Process]]) -> list[Gpu]:
    units: list[Gpu] = []
    first_index = max(gpu["index"] for gpu in gpus) + 1
    for gpu in gpus:
        if gpu["mig_mode"] != "enabled":
            continue
        card = listed.get(gpu["uuid"])
        own = mig.units(gpu, (), card.migs if card else (), first_index=first_index + len(units))
        for unit in own:
            unit["processes"] = [process.to_json() for process in apps.get(unit["uuid"], ())]
        if not own:
            gpu["problems"].append(problem("mig_empty", "MIG is on and nvidia-smi -L lists no instance of it"))
        units += own
    return units


def parse_apps(text: str) -> dict[str, list[Process]]:
    """`--query-compute-apps`: processes by the card's UUID. A name may have commas."""
    found: dict[str, list[Process]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        uuid = readings.uuid(cells[0])
        if len(cells) < len(APPS) or uuid is None:
            continue
        process = Process(
            pid=readings.integer(cells[1]),
            name=readings.process_name(", ".join(cells[2:-1])),
            type="C",
            memory_mib=readings.mib(cells[-1]),
        )
        found.setdefault(uuid, []).append(process)
    return found


def _header(cells: Sequence[str]) -> tuple[str, ...]:
    """`memory.total [MiB]` → `memory.total`; empty when the line is no header."""
    names = tuple(cell.partition(" [")[0] for cell in cells)
    return names if set(names) & {"index", "uuid", "name", "memory.total", "memory.used", "driver_version"} else ()


def _is_row(names: Sequence[str], cells: Sequence[str]) -> bool:
    if not names or len(cells) != len(names):
        return False
    return "index" not in names or readings.integer(cells[names.index("index")]) is not None


def _indexes(rows: Sequence[Mapping[str, str]]) -> list[int]:
    """The rows' own numbers, or their places where a number is missing or there twice."""
    told = [readings.integer(row.get("index")) for row in rows]
    numbers = [number for number in told if number is not None]
    return numbers if len(set(numbers)) == len(rows) else list(range(len(rows)))


def _seen(row: Mapping[str, str], index: int, apps: Mapping[str, Sequence[Process]]) -> Seen:
    uuid = readings.uuid(row.get("uuid"))
    identity = (row.get("uuid"), row.get("name"), row.get("memory.total"))
    seen = Seen(
        index=index,
        uuid=uuid,
        uuid_told="uuid" in row,
        name=readings.known(row.get("name")),
        bus=readings.bus(row.get("pci.bus_id")),
        memory_total_mib=readings.mib(row.get("memory.total")),
        memory_used_mib=readings.mib(row.get("memory.used")),
        memory_reserved_mib=readings.mib(row.get("memory.reserved")),
        compute_capability=_capability(row.get("compute_cap")),
        fault=next((fault for cell in row.values() if (fault := readings.fault(cell))), None),
        figures=_figures(row),
        processes=tuple(apps.get(uuid or "", ())),
    )
    return seen if seen.fault else replace(seen, fault=readings.identity_fault(identity))


def _figures(row: Mapping[str, str]) -> Figures:
    def count(name: str) -> int | None:
        return readings.integer(row.get(name))

    double = count("retired_pages.double_bit.count")
    return Figures(
        recovery_action=readings.known(row.get("gpu_recovery_action")),
        ecc_volatile_uncorrectable=count("ecc.errors.uncorrected.volatile.total"),
        ecc_aggregate_uncorrectable=count("ecc.errors.uncorrected.aggregate.total"),
        remap_pending=readings.yes(row.get("remapped_rows.pending")),
        remap_failed=readings.yes(row.get("remapped_rows.failure")),
        remapped_uncorrectable=count("remapped_rows.uncorrectable"),
        retired_pages=readings.total((count("retired_pages.single_bit_ecc.count"), double)),
        retired_double_bit=double,
        retired_pending=readings.yes(row.get("retired_pages.pending")),
        throttled=frozenset(code for name, code in _THROTTLE.items() if row.get(name, "").strip().lower() == "active"),
        mig_current=readings.known(row.get("mig.mode.current")),
        mig_pending=readings.known(row.get("mig.mode.pending")),
    )


def _capability(text: str | None) -> str | None:
    major, dot, minor = (text or "").strip().partition(".")
    whole = readings.integer(major) is not None and readings.integer(minor) is not None
    return f"{major}.{minor}" if dot and whole else None
