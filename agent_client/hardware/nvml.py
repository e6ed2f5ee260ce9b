"""GPUs by NVML, asked in a process of its own: a sick driver may hang a call for ever, or take the process with it.

The child says each step (nvml_reader.py). When it falls silent, the card that it was at is known: that one is left out
and a next child asks for the others, so that one sick card hides no other.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_client.hardware import mig, nvlink, program, readings
from agent_client.hardware.cards import Found, Gpu, Process, Seen, build
from agent_client.hardware.health import Figures, problem
from agent_client.hardware.nvidia_list import ListedMig
from agent_client.hardware.nvidia_smi import host_memory

READER = Path(__file__).with_name("nvml_reader.py")
#: A card that hung is touched again after this long: each try may leave a process behind that can't be killed.
RETRY_SECONDS = 600.0
#: Children of one look; each may cost a whole deadline.
_MOST_CHILDREN = 3
_NO_LIBRARY = 12
_THROTTLE = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}

Record = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _Told:
    """What the children of one look said."""

    head: Record = field(default_factory=dict)
    cards: dict[int, Record] = field(default_factory=dict)
    begun: int | None = None  # a card that was touched and has not answered
    ended: bool = False
    failed: Record | None = None

    def take(self, text: str) -> None:
        self.begun = None
        for line in text.splitlines():
            try:
                record = json.loads(line)
                kind, index = record["kind"], record.get("index")
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # cut off in the middle of a line, or a library that prints
            if kind == "head":
                self.head = record
            elif kind == "begin":
                self.begun = index
            elif kind in ("identity", "card"):
                self.cards[index] = record
                self.begun = index if kind == "identity" else None
            elif kind == "failed":
                self.failed = record
            self.ended = self.ended or kind == "end"


class Nvml:
    """Remembers which cards hang. Not for two threads at once."""

    def __init__(self, argv: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._argv = tuple(argv) or (sys.executable, "-P", str(READER))
        self._clock = clock
        self._hung: dict[int, float] = {}  # index → when
        self._known: dict[int, Record] = {}  # the last answer of each card: a hung one still has a name

    def read(self, *, deadline_seconds: float = program.DEADLINE_SECONDS) -> Found:
        """Never raises. Source `none` without the library; `unavailable` with the reason when NVML does not answer."""
        now = self._clock()
        self._hung = {index: at for index, at in self._hung.items() if now - at < RETRY_SECONDS}
        told = _Told()
        trouble = ""
        for _ in range(_MOST_CHILDREN):
            skip = sorted({*self._hung, *(i for i, card in told.cards.items() if card["kind"] == "card")})
            argv = [*self._argv, "--skip", ",".join(map(str, skip))]
            output = program.run(argv, deadline_seconds=deadline_seconds, name=f"nvml without {sorted(self._hung)}")
            told.take(output.output)
            trouble = output.complaint if output.code is None or output.code != 0 else ""
            if told.ended or told.failed or told.begun is None:
                break
            self._hung[told.begun] = self._clock()
        return self._found(told, trouble)

    def _found(self, told: _Told, trouble: str) -> Found:
        if told.failed is not None and not told.cards:
            if told.failed.get("code") == _NO_LIBRARY:
                return Found(source="none")
            return Found(source="unavailable", error=f"cannot read GPUs from NVML: {told.failed.get('error')}")
        if not told.head:
            return Found(source="unavailable", error=f"cannot read GPUs from NVML: {trouble or 'it says nothing'}")
        records: list[Record] = []
        for index in range(int(told.head.get("count") or 0)):
            card = told.cards.get(index)
            if card is None or card["kind"] != "card":
                silent = {**self._known.get(index, {}), **(card or {}), "links": [], "migs": []}
                records.append({**silent, "kind": "silent", "index": index, "fault": "not_answering"})
            else:
                records.append(card)
                if card.get("uuid"):
                    self._known[index] = {name: card.get(name) for name in ("uuid", "bus", "name")}
        return assemble(records, driver=told.head.get("driver"), cuda=told.head.get("cuda"))


def read(*, deadline_seconds: float = program.DEADLINE_SECONDS) -> Found:
    """A single look."""
    return Nvml().read(deadline_seconds=deadline_seconds)


def assemble(records: Sequence[Record], *, driver: str | None, cuda: str | None) -> Found:
    """The cards in NVML's order, which is PCI's, then the MIG devices. Pure, but for the machine's own memory."""
    answering = [_links(record) for record in records if record.get("kind") != "silent" and "links" in record]
    domains = nvlink.domains(answering)
    place = {index: domain["id"] for domain in domains for index in domain["gpus"]}
    host = host_memory()
    gpus: list[Gpu] = []
    units: list[Gpu] = []
    for record in records:
        gpu = build(_seen(record, place.get(record["index"])), host)
        gpu["numa"] = None
        gpu["links"] = _shown_links(record)
        gpu["sensors"] = _sensors(record)
        text = nvlink.down(_links(record))
        if text:
            gpu["problems"].append(problem("nvlink_down", text))
        gpus.append(gpu)
        if record.get("migs") is not None and gpu["mig_mode"] == "enabled":
            units += _units(record, gpu, first_index=len(records) + len(units))
    return Found(source="nvml", gpus=[*gpus, *units], driver=driver, cuda=cuda, domains=domains)


def _seen(record: Record, domain: str | None) -> Seen:
    return Seen(
        index=record["index"],
        uuid=readings.known(record.get("uuid")),
        name=readings.known(record.get("name")),
        bus=readings.bus(record.get("bus")),
        memory_total_mib=record.get("memory_total_mib"),
        memory_used_mib=record.get("memory_used_mib"),
        compute_capability=record.get("compute_capability"),
        domain=domain,
        fault=record.get("fault"),
        figures=_figures(record),
        processes=_processes(record.get("processes")),
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
        retired_pending=None if record.get("retired_pending") is None else bool(record["retired_pending"]),
        throttled=frozenset(code for bit, code in _THROTTLE.items() if throttle & bit),
        fabric_state=nvlink.FABRIC_STATES[fabric.state] if fabric and 0 < fabric.state < 4 else None,
        fabric_status=_status(fabric),
        fabric_health=fabric.health if fabric and fabric.ready else None,
        mig_current=_mode(current),
        mig_pending=_mode(pending),
    )


def _mode(value: int | None) -> str | None:
    return None if value is None else "enabled" if value else "disabled"


def _status(fabric: nvlink.FabricInfo | None) -> str | None:
    if fabric is None or not fabric.supported:
        return None
    return "Success" if fabric.status == 0 else f"NVML error {fabric.status}"


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
    fabric = _fabric(record)
    return nvlink.CardLinks(index=record["index"], bus=readings.bus(record.get("bus")), links=links, fabric=fabric)


def _shown_links(record: Record) -> dict[str, int] | None:
    links = record.get("links") or ()
    return {"up": sum(link["up"] for link in links), "total": len(links)} if links else None


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


def _processes(given: Sequence[Record] | None) -> tuple[Process, ...]:
    return tuple(
        Process(pid=each["pid"], name=each.get("name"), type=each.get("type"), memory_mib=each.get("memory_mib"))
        for each in given or ()
    )


def _units(record: Record, parent: Gpu, *, first_index: int) -> list[Gpu]:
    migs = record["migs"]
    seen = [
        mig.SeenMig(
            device=each["device"],
            gi=each.get("gi"),
            ci=each.get("ci"),
            memory_total_mib=each.get("memory_total_mib"),
            memory_used_mib=each.get("memory_used_mib"),
            sms=each.get("sms"),
        )
        for each in migs
    ]
    listed = [
        ListedMig(device=each["device"], profile=profile, uuid=each["uuid"])
        for each in migs
        if each.get("uuid") and (profile := (each.get("name") or "").rpartition("MIG ")[2])
    ]
    units = mig.units(parent, seen, listed, first_index=first_index)
    processes = {each["device"]: _processes(each.get("processes")) for each in migs}
    for unit in units:
        unit["processes"] = [process.to_json() for process in processes.get(unit["mig"]["device"], ())]
        unit["links"] = unit["sensors"] = None
    if not units:
        parent["problems"].append(problem("mig_empty", "MIG is on and no instance is made of the card"))
    return units
