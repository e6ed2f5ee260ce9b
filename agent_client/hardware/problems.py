"""Every problem code with its default severity, whose judgement that is, and what to do. A site can change severities.

Opinions differ (a pending row remap is a warning to NVIDIA and critical to Meta's gcm), so the source stands beside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNPLACEABLE, WARNING, IGNORE = "unplaceable", "warning", "ignore"
NO_CHANGES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    severity: str
    source: str  # whose judgement the default is
    hint: str


_RESET = "move the work away, then reset the card (nvidia-smi --gpu-reset) or reboot"
PROBLEMS: Mapping[str, Rule] = {
    "lost": Rule(severity=UNPLACEABLE, source="NVML error 15", hint="reboot; if it comes back, reseat or replace it"),
    "not_answering": Rule(severity=UNPLACEABLE, source="NVML: the handle or the UUID fails", hint=_RESET),
    "partitioned": Rule(
        severity=UNPLACEABLE,
        source="llmgw: parts of one AMD card share its id",
        hint="amd-smi set --compute-partition SPX makes it one GPU again",
    ),
    "no_permission": Rule(severity=UNPLACEABLE, source="NVML error 4", hint="let the agent's user read /dev/nvidia*"),
    "reset_required": Rule(severity=UNPLACEABLE, source="NVML error 16, recovery action >= 1", hint=_RESET),
    "ecc_uncorrectable": Rule(severity=UNPLACEABLE, source="DCGM: volatile count > 0, until reset", hint=_RESET),
    "row_remap_failed": Rule(
        severity=UNPLACEABLE, source="NVIDIA GPU memory error management, DCGM", hint="have the card replaced"
    ),
    "unrepairable_memory": Rule(severity=UNPLACEABLE, source="driver 595: its own verdict", hint="replace the card"),
    "retired_pages_limit": Rule(
        severity=UNPLACEABLE, source="DCGM: 63 pages, or 15 double-bit and more this week", hint="replace the card"
    ),
    "row_remap_pending": Rule(
        severity=WARNING, source="NVIDIA: new work may start, reset when free (Meta's gcm: critical)", hint=_RESET
    ),
    "row_remap_limit": Rule(
        severity=WARNING, source="DCGM: 512 uncorrectable remaps", hint="have the card checked: it runs out of rows"
    ),
    "retired_pages_pending": Rule(
        severity=WARNING, source="NVIDIA page retirement", hint="reboot (or reload the driver) when the card is free"
    ),
    "repair_pending": Rule(severity=WARNING, source="driver 580: repair at the next reset", hint=_RESET),
    "sram_threshold": Rule(severity=WARNING, source="driver 550: SRAM error threshold", hint="have the card checked"),
    "fabric_not_ready": Rule(
        severity=WARNING, source="NVML fabric info", hint="check nvidia-fabricmanager (or IMEX) on this node"
    ),
    "hw_thermal": Rule(severity=WARNING, source="NVML clock event reason 0x40", hint="check fans and air flow"),
    "power_brake": Rule(severity=WARNING, source="NVML clock event reason 0x80", hint="check the power supplies"),
    "hw_slowdown": Rule(severity=WARNING, source="NVML clock event reason 0x8", hint="check cooling and power"),
    "sw_thermal": Rule(severity=WARNING, source="NVML clock event reason 0x20", hint="check fans and air flow"),
    "mig_pending": Rule(severity=WARNING, source="NVML: pending MIG mode differs", hint=_RESET),
    "mig_empty": Rule(
        severity=WARNING,
        source="MIG is on without instances",
        hint="make instances (nvidia-smi mig -cgi), or turn it off",
    ),
    "nvlink_down": Rule(severity=WARNING, source="NVML link state", hint="check the bridge, or nvidia-fabricmanager"),
    "xid": Rule(severity=UNPLACEABLE, source="NVIDIA Xid catalogue: fatal codes", hint=_RESET),
    # Placement itself keeps off cards with processes that are not ours; so the mark alone need not forbid the card.
    "foreign_process": Rule(severity=WARNING, source="llmgw: inventory", hint="end it, or cordon the card"),
    "memory_held": Rule(
        severity=WARNING, source="llmgw: inventory", hint="look for a dead engine's leftovers: fuser -v /dev/nvidia*"
    ),
    "detection_broken": Rule(
        severity=UNPLACEABLE, source="llmgw: inventory", hint="run nvidia-smi on the node; reload the driver or reboot"
    ),
    "missing_card": Rule(
        severity=WARNING, source="nvidia-smi: attached_gpus, or the owner's `expect`", hint="look for Xid 79 in dmesg"
    ),
}


def problem(code: str, text: str, *, hint: str | None = None) -> dict[str, str]:
    rule = PROBLEMS[code]
    return {"code": code, "severity": rule.severity, "text": text, "hint": rule.hint if hint is None else hint}


def settle(problems: Iterable[Mapping[str, str]], severities: Mapping[str, str] = NO_CHANGES) -> list[dict[str, str]]:
    """The site's severities put in (an unknown word changes nothing, `ignore` drops); unplaceable ones first."""
    out = []
    for each in problems:
        wanted = severities.get(each["code"])
        severity = wanted if wanted in (UNPLACEABLE, WARNING, IGNORE) else each["severity"]
        if severity != IGNORE:
            out.append({**each, "severity": severity})
    return sorted(out, key=lambda each: each["severity"] != UNPLACEABLE)


def placeable(problems: Iterable[Mapping[str, str]]) -> bool:
    return all(each["severity"] != UNPLACEABLE for each in problems)
