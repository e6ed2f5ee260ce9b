"""GPUs from amd-smi, else rocm-smi. They may be missing, slow or lie; XGMI domains come from sysfs, else amd-smi."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_client.hardware import amd_reports, program, sysfs
from agent_client.hardware.amd_classes import gpu_class
from agent_client.hardware.amd_reports import Card, Metric
from agent_client.hardware.cards import Found
from agent_client.hardware.problems import placeable, problem

_ROCM_ARGUMENTS = (
    "--showid",
    "--showproductname",
    "--showuniqueid",
    "--showbus",
    "--showmeminfo",
    "vram",
    "--showdriverversion",
    "--json",
)
#: The processor and its HBM are one package: the card's memory is the machine's.
_SHARED_MEMORY = ("mi300a",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What sysfs says of the card at a PCI address. `hive` is None where the driver shows no XGMI."""

    hive: str | None = None
    numa: int | None = None


def read(amd_smi: str | None = None, rocm_smi: str | None = None, *, drm_root: Path = Path("/sys/class/drm")) -> Found:
    """Ask the tools. `none` without any of them, `unavailable` with the reason when none of them answers."""
    newer, older = amd_smi or shutil.which("amd-smi"), rocm_smi or shutil.which("rocm-smi")
    if newer is None and older is None:
        return Found(source="none")
    errors = []
    if newer is not None:
        static = program.run([newer, "static", "--json"])
        cards = amd_reports.parse_static(static.output)
        if cards:
            return _from_amd_smi(newer, cards, places(drm_root))
        if cards is not None and static.code == 0:
            return Found(source="amd-smi")
        errors.append(f"amd-smi: {static.complaint}")
        if static.code is None:
            older = None  # the driver hangs: the other tool would as well, for another deadline
    if older is not None:
        found = _from_rocm_smi(older, places(drm_root))
        if found.error is None:
            return found
        errors.append(found.error)
    return Found(source="unavailable", error=f"cannot read GPUs from {'; '.join(errors)}")


def _from_amd_smi(tool: str, cards: Sequence[Card], known: Mapping[str, Place]) -> Found:
    answer = program.run([tool, "metric", "--json"])
    metrics = amd_reports.parse_metric(answer.output)
    error = None if metrics is not None else f"cannot read memory and ECC from amd-smi metric: {answer.complaint}"
    gpus = assemble(cards, metrics or (), known)
    links = None
    if any(gpu["bus"] not in known for gpu in gpus) or _hidden_hives(gpus, known):
        links = amd_reports.parse_xgmi_links(program.run([tool, "topology", "--json"]).output)
    return _found("amd-smi", cards, gpus, known, links, error)


def _from_rocm_smi(tool: str, known: Mapping[str, Place]) -> Found:
    answer = program.run([tool, *_ROCM_ARGUMENTS])
    report = amd_reports.parse_rocm(answer.output)
    if report is None:
        return Found(source="unavailable", error=f"rocm-smi: {answer.complaint}")
    return _found("rocm-smi", report[0], assemble(*report, known), known, None, None)


def _found(
    source: str,
    cards: Sequence[Card],
    gpus: list[dict[str, Any]],
    known: Mapping[str, Place],
    links: Mapping[int, frozenset[int]] | None,
    error: str | None,
) -> Found:
    driver = next((card.driver for card in cards if card.driver), None)
    domains = xgmi_domains(gpus, known, links)
    for domain in domains:
        for gpu in gpus:
            if gpu["index"] in domain["gpus"]:
                gpu["domain"] = domain["id"]
    return Found(source=source, gpus=gpus, domains=domains, driver=driver, error=error)


def places(drm_root: Path) -> dict[str, Place]:
    """PCI address → what lies below `/sys/class/drm/card*/device`."""
    out = {}
    for name in sysfs.names(drm_root):
        device = drm_root / name / "device"
        bus = sysfs.pci_address(device) if re.fullmatch(r"card[0-9]+", name) and os.path.isdir(device) else None
        if bus is None:
            continue
        hives = [sysfs.text(device / folder / "xgmi_hive_id") for folder in ("xgmi_hive_info", "xgmi_info")]
        hive = next((text for text in hives if text and re.fullmatch(r"(0x)?[0-9a-fA-F]{1,20}", text)), None)
        hive = hive if hive and hive.removeprefix("0x").strip("0") else None
        out[bus] = Place(hive=hive, numa=sysfs.natural_number(device / "numa_node"))
    return out


def assemble(cards: Sequence[Card], metrics: Sequence[Metric], known: Mapping[str, Place]) -> list[dict[str, Any]]:
    """Cards by index with what was measured; one that only the measurement knows is shown too."""
    measured = {metric.index: metric for metric in metrics}
    listed = {card.index: card for card in cards}
    serials = Counter(card.serial for card in listed.values())
    gpus = []
    for index in sorted({*listed, *measured}):
        card = listed.get(index, Card(index=index))
        shared = card.serial is not None and serials[card.serial] > 1
        gpus.append(_gpu(card, measured.get(index, Metric(index=index)), known, shared=shared))
    return gpus


def _gpu(card: Card, metric: Metric, known: Mapping[str, Place], *, shared: bool) -> dict[str, Any]:
    total = card.memory_mib if card.memory_mib is not None else metric.memory_mib
    problems = _problems(card, metric, shared=shared)
    place = known.get(card.bus or "", Place())
    kind = gpu_class(card.name, total, card.slot)
    return {
        "index": card.index,
        "uuid": f"GPU-{card.serial}" if card.serial and not shared else None,  # as ROCR_VISIBLE_DEVICES takes it
        "name": card.name,
        "class": kind,
        "bus": card.bus,
        "memory_total_mib": total,
        "memory_used_mib": metric.used_mib,
        "memory_reserved_mib": None,
        "compute_capability": None,  # NVIDIA's measure
        "gfx": card.gfx,
        "numa": card.numa if card.numa is not None else place.numa,
        "domain": None,
        "links": None,
        "sensors": None,
        "mig": None,
        "placeable": placeable(problems),
        "shared_memory": kind.startswith(_SHARED_MEMORY),
        "mig_mode": None,
        "processes": [],
        "problems": problems,
        "health": {} if metric.ecc_uncorrectable is None else {"ecc_volatile_uncorrectable": metric.ecc_uncorrectable},
    }


def _problems(card: Card, metric: Metric, *, shared: bool) -> list[dict[str, str]]:
    out = []
    if shared:
        text = "the card is partitioned: its parts share one unique id and can't be told apart"
        out.append(problem("partitioned", text))
    elif card.serial is None:
        text = "the card does not tell its unique id"
        hint = "look for amdgpu in the kernel log; reset the card or reboot"
        out.append(problem("not_answering", text, hint=hint))
    if metric.ecc_uncorrectable:
        text = f"{metric.ecc_uncorrectable} uncorrectable memory errors since the driver started"
        hint = "amd-smi reset --gpureset, or reboot; replace it if they return"
        out.append(problem("ecc_uncorrectable", text, hint=hint))
    return out


def _is_module(gpu: Mapping[str, Any]) -> bool:
    return "oam" in gpu["class"].split("-")


def _hidden_hives(gpus: Sequence[Mapping[str, Any]], known: Mapping[str, Place]) -> bool:
    """Modules have XGMI by construction; a guest's sysfs may not show it."""
    return any(_is_module(gpu) and known.get(gpu["bus"] or "", Place()).hive is None for gpu in gpus)


def xgmi_domains(
    gpus: Sequence[Mapping[str, Any]],
    known: Mapping[str, Place],
    links: Mapping[int, frozenset[int]] | None = None,
) -> list[dict[str, Any]]:
    """Groups that XGMI connects: one hive in sysfs, else linked. A GPU that nothing is known of is in none."""
    groups: dict[str, list[int]] = {}
    unknown = []
    for gpu in gpus:
        place = known.get(gpu["bus"] or "")
        if place is not None and place.hive is not None:
            groups.setdefault(f"xgmi-{place.hive}", []).append(gpu["index"])
        elif links is not None and gpu["index"] in links:
            unknown.append(gpu["index"])
        elif place is not None and not _is_module(gpu):
            groups[f"single-{gpu['bus']}"] = [gpu["index"]]
    for members in _components(unknown, links or {}):
        first = next(gpu for gpu in gpus if gpu["index"] == members[0])
        word = "xgmi" if len(members) > 1 else "single"
        groups[f"{word}-{first['bus'] or first['index']}"] = members
    return [
        {
            "id": key,
            "gpus": members,
            "kind": "bridge" if len(members) > 1 else "single",
            "cluster": None,
            "clique": None,
        }
        for key, members in sorted(groups.items(), key=lambda item: item[1])
    ]


def _components(members: Sequence[int], links: Mapping[int, frozenset[int]]) -> list[list[int]]:
    left, out = set(members), []
    while left:
        reached, edge = set(), {min(left)}
        while edge:
            reached |= edge
            linked = {peer for one in edge for peer in left if peer in links[one] or one in links[peer]}
            edge = linked - reached
        left -= reached
        out.append(sorted(reached))
    return out
