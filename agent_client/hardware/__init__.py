"""What the machine has, in the shape of DESIGN.md section 5. A figure that is not known is null, never 0."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_client.hardware import infiniband, nvidia_smi
from agent_client.hardware.cards import Found
from agent_client.hardware.finish import finish

#: Quickly changing figures that must not make an inventory look changed.
_VOLATILE = ("memory_used_mib", "processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    node_id: str
    use_gpu: bool = True
    nvidia_smi: str | None = None
    ib_root: Path = Path("/sys/class/infiniband")
    fabrics: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name, regular expressions over whole HCA names
    expect_gpus: int | None = None
    expect_hcas: int | None = None
    owned_pids: Callable[[], Collection[int]] = tuple  # of our engines
    severities: Mapping[str, str] = field(default_factory=dict)  # problem code → unplaceable, warning or ignore
    gpu_classes: tuple[tuple[str, str], ...] = ()  # regular expression over the whole card name, class


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dict(self.data)

    def fingerprint(self) -> str:
        """A hash that ignores what changes all the time, numbers in texts too."""
        gpus = []
        for gpu in self.data.get("gpus", []):
            problems = [(problem["code"], problem["severity"]) for problem in gpu.get("problems", [])]
            gpus.append({**{k: v for k, v in gpu.items() if k not in _VOLATILE}, "problems": problems})
        lasting = {key: value for key, value in self.data.items() if key != "warnings"}
        text = json.dumps({**lasting, "gpus": gpus}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def discover(options: DiscoveryOptions) -> Inventory:
    """Read everything once; blocks for at most a few seconds. Never raises for sick hardware: it says so instead."""
    found = Found(source="none")
    if options.use_gpu:
        before = options.owned_pids()
        found = nvidia_smi.read(options.nvidia_smi)
        found = finish(
            found,
            owned_pids={*before, *options.owned_pids()},  # one may start or end while the cards are read
            severities=options.severities,
            overrides=options.gpu_classes,
        )
    adapters = infiniband.read(options.ib_root, options.fabrics)
    data = {
        "version": 1,
        "node_id": options.node_id,
        "source": found.source,
        "driver": found.driver,
        "cuda": found.cuda,
        "error": found.error,
        "warnings": _warnings(options, found, adapters),
        "problems": found.problems,
        "gpus": found.gpus,
        "domains": found.domains,
        "adapters": adapters,
    }
    return Inventory(data=data)


def _warnings(options: DiscoveryOptions, found: Found, adapters: list[dict[str, Any]]) -> list[str]:
    out = []
    gpus = [gpu for gpu in found.gpus if gpu["mig"] is None]
    if not adapters:
        out.append("no adapters: this node cannot host multi-node replicas")
    elif not options.fabrics:
        out.append("fabric identity is not taken from the GID prefix: label fabrics in agent.yaml")
    if sum(gpu["domain"] is None for gpu in gpus) > 1:
        out.append("NVLink topology unknown: a tensor-parallel group can't be kept inside one domain")
    for gpu in found.gpus:
        name = gpu["bus"] if gpu["index"] is None else gpu["index"]
        out.extend(f"GPU {name}: {problem['text']}" for problem in gpu["problems"])
    out.extend(problem["text"] for problem in found.problems)
    if options.expect_gpus is not None and len(gpus) < options.expect_gpus:
        out.append(f"missing card: {options.expect_gpus} GPUs are expected, {len(gpus)} are there")
    if options.expect_hcas is not None and len(adapters) < options.expect_hcas:
        out.append(f"missing adapter: {options.expect_hcas} HCAs are expected, {len(adapters)} are there")
    for adapter in adapters:
        for port in adapter["ports"]:
            name = f"{adapter['hca']} port {port['port']}"
            out.extend(f"{name}: {problem['text']}" for problem in port["problems"])
    return out
