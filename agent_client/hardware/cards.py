"""What a source saw of one card → the inventory's GPU (DESIGN.md section 5), judged; and what a source found in all.

Pure. New keys beside the documented ones: `mig_mode`, `health` (figures that are known), a process's `type`
and `foreign` (in the way of engines of ours).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agent_client.hardware import capability
from agent_client.hardware.classes import gpu_class, is_unified
from agent_client.hardware.health import Figures, judge, placeable, problem

Gpu = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    source: str  # nvidia-smi, none, unavailable, …
    gpus: list[Gpu] = field(default_factory=list)
    driver: str | None = None
    cuda: str | None = None
    error: str | None = None
    problems: list[dict[str, str]] = field(default_factory=list)  # of the node, such as missing_card
    domains: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """/proc/meminfo, for chips whose GPU shares the machine's memory."""

    total_mib: int
    available_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int | None
    name: str | None = None
    type: str | None = None  # C, G, C+G, M+C
    memory_mib: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "name": self.name, "user": None, "memory_mib": self.memory_mib, "type": self.type}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One card as a source saw it."""

    index: int | None
    uuid: str | None = None
    uuid_told: bool = True  # the source has a place for the UUID; if that is empty the card does not answer
    name: str | None = None
    bus: str | None = None
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_reserved_mib: int | None = None  # the driver's own share
    compute_capability: str | None = None
    domain: str | None = None
    fault: str | None = None  # a problem code that the cells themselves tell
    fault_text: str | None = None  # its sentence, where more is known than the code
    figures: Figures = field(default_factory=Figures)
    processes: tuple[Process, ...] = ()


_FAULTS = {
    "lost": "the driver has lost the card",
    "reset_required": "the driver asks for a reset of the card",
    "no_permission": "the driver does not let this user read the card",
    "not_answering": "the card does not answer the driver",
}
_HISTORY = (
    "recovery_action",
    "ecc_volatile_uncorrectable",
    "ecc_aggregate_uncorrectable",
    "remapped_uncorrectable",
    "retired_pages",
)


def build(seen: Seen, host: HostMemory | None = None) -> Gpu:
    shared = seen.name is not None and is_unified(seen.name)
    total, used = seen.memory_total_mib or None, seen.memory_used_mib
    if shared and total is None and host is not None:
        total = host.total_mib
        used = None if host.available_mib is None else max(0, host.total_mib - host.available_mib)
    problems = judge_seen(seen)
    mig = (seen.figures.mig_current or "").lower() or None
    return {
        "index": seen.index,
        "uuid": seen.uuid,
        "name": seen.name,
        "class": gpu_class(seen.name, total) if seen.name is not None else None,
        "bus": seen.bus,
        "memory_total_mib": total,
        "memory_used_mib": used,
        "memory_reserved_mib": seen.memory_reserved_mib,
        "compute_capability": seen.compute_capability or capability.from_name(seen.name),
        "numa": None,
        "domain": seen.domain,
        "links": None,
        "sensors": None,
        "mig": None,
        "mig_mode": mig,
        "placeable": placeable(problems) and seen.uuid is not None and mig != "enabled",
        "shared_memory": shared,
        "processes": [process.to_json() for process in merge(seen.processes)],
        "problems": problems,
        "health": {name: value for name in _HISTORY if (value := asdict(seen.figures)[name]) is not None},
    }


def judge_seen(seen: Seen) -> list[dict[str, str]]:
    problems = judge(seen.figures)
    codes = {each["code"] for each in problems}
    fault = seen.fault
    if fault is None and seen.uuid is None and seen.uuid_told:
        fault = "not_answering"
    if fault is not None and fault not in codes:
        problems.insert(0, problem(fault, seen.fault_text or _FAULTS[fault]))
    return problems


def merge(processes: Iterable[Process]) -> list[Process]:
    """A process that computes and draws is listed twice with the same memory: it is one."""
    merged: dict[Any, Process] = {}
    for number, process in enumerate(processes):
        key = process.pid if process.pid is not None else f"unknown {number}"
        other = merged.get(key)
        if other is None:
            merged[key] = process
            continue
        kinds = {kind for each in (other, process) for kind in (each.type or "").split("+") if kind}
        sizes = [each.memory_mib for each in (other, process) if each.memory_mib is not None]
        merged[key] = replace(
            other,
            name=other.name or process.name,
            type="+".join(sorted(kinds, key="MCG".find)) or None,
            memory_mib=max(sizes, default=None),
        )
    return list(merged.values())


def missing(expected: int | None, there: int, where: str) -> list[dict[str, str]]:
    if expected is None or expected <= there:
        return []
    gone = expected - there
    text = f"missing card: {gone} of {expected} cards {'is' if gone == 1 else 'are'} not in {where}"
    return [problem("missing_card", text)]


def rack_domains(gpus: Iterable[Gpu], fabrics: Mapping[int, tuple[str, int]]) -> list[dict[str, Any]]:
    """Multi-node NVLink: cards with the same cluster and clique, on this node and on others."""
    members: dict[tuple[str, int], list[int]] = {}
    for gpu in gpus:
        if gpu["index"] in fabrics:
            members.setdefault(fabrics[gpu["index"]], []).append(gpu["index"])
    return [
        {"id": domain_id(*key), "gpus": indexes, "kind": "rack", "cluster": key[0], "clique": key[1]}
        for key, indexes in members.items()
    ]


def domain_id(cluster: str, clique: int) -> str:
    return f"{cluster}.{clique}"
