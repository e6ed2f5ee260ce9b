"""The inventory as a value, what it warns about, and its fingerprint."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_client.hardware.cards import Found
from agent_client.hardware.labels import Fabrics, missing_adapters
from agent_client.hardware.problems import PROBLEMS, placeable

#: Grows when a key changes its meaning; new keys may come at any time.
VERSION = 1
#: Quickly changing figures that must not make an inventory look changed.
_VOLATILE = ("memory_used_mib", "memory_reserved_mib", "processes", "health", "sensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    data: Mapping[str, Any] = field(default_factory=dict)
    lasting_warnings: tuple[str, ...] = ()  # of those in `data`: they hold no figure that changes all the time

    def to_json(self) -> dict[str, Any]:
        return dict(self.data)

    def fingerprint(self) -> str:
        """A hash that ignores what changes all the time, numbers in texts too."""
        gpus = []
        for gpu in self.data.get("gpus", []):
            problems = [(problem["code"], problem["severity"]) for problem in gpu.get("problems", [])]
            foreign = sorted(str(each.get("pid")) for each in gpu.get("processes", []) if each.get("foreign"))
            lasting = {key: value for key, value in gpu.items() if key not in _VOLATILE}
            gpus.append({**lasting, "problems": problems, "foreign": foreign})
        adapters = [
            {**adapter, "ports": [{**port, "errors_per_hour": None} for port in adapter["ports"]]}
            for adapter in self.data.get("adapters", [])
        ]
        lasting = {key: value for key, value in self.data.items() if key != "warnings"}
        text = json.dumps(
            {**lasting, "warnings": self.lasting_warnings, "gpus": gpus, "adapters": adapters},
            sort_keys=True,
            default=str,
        )
        return hashlib.sha256(text.encode()).hexdigest()


def warnings(
    found: Found,
    adapters: Sequence[Mapping[str, Any]],
    fabrics: Fabrics,
    *,
    expect_gpus: int | None = None,
    expect_hcas: int | None = None,
    asked_for_gpus: bool = True,
    severities: Iterable[str] = (),
) -> list[str]:
    """Plain sentences, the node's first."""
    out = []
    gpus = [gpu for gpu in found.gpus if gpu["mig"] is None]
    if not adapters:
        out.append("no adapters: this node cannot host multi-node replicas")
    elif not fabrics:
        out.append("fabric identity is not taken from the GID prefix: label fabrics in agent.yaml")
    if sum(gpu["domain"] is None and placeable(gpu["problems"]) for gpu in gpus) > 1:
        need = " (needs NVML)" if found.source == "nvidia-smi" else ""
        out.append(f"NVLink topology unknown{need}: a tensor-parallel group can't be kept inside one domain")
    for code in severities:
        if code not in PROBLEMS:
            near = difflib.get_close_matches(code, PROBLEMS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(PROBLEMS)}"
            out.append(f"agent.yaml: severities.{code} is no problem's code; {hint}")
    out += [_told(problem) for problem in found.problems]
    for gpu in found.gpus:
        name = gpu["bus"] if gpu["index"] is None else gpu["index"]
        out += [f"GPU {name}: {_told(problem)}" for problem in gpu["problems"]]
    if asked_for_gpus and expect_gpus is not None and len(gpus) < expect_gpus:
        out.append(f"missing card: {expect_gpus} GPUs are expected, {len(gpus)} are there")
    hcas = [adapter for adapter in adapters if not adapter["virtual"]]
    if expect_hcas is not None and len(hcas) < expect_hcas:
        out.append(f"missing adapter: {expect_hcas} HCAs are expected, {len(hcas)} are there")
    out += [_told(problem) for problem in missing_adapters(adapters, fabrics)]
    for adapter in adapters:
        for port in adapter["ports"]:
            out += [f"{adapter['hca']} port {port['port']}: {_told(problem)}" for problem in port["problems"]]
    return out


def _told(problem: Mapping[str, str]) -> str:
    """With what to do about it."""
    return f"{problem['text']}; {problem['hint']}" if problem["hint"] else problem["text"]
