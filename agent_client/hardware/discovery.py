"""Looks at the machine, again and again: every source in its order, and what one look must remember for the next."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_client.hardware import addresses, amd, infiniband, inventory, link_counters, nvidia_smi, nvml, steady, xid
from agent_client.hardware.cards import Found, Gpu
from agent_client.hardware.finish import finish
from agent_client.hardware.inventory import Inventory
from agent_client.hardware.labels import Fabrics
from agent_client.hardware.problems import NO_CHANGES, placeable, problem
from agent_client.hardware.problems import settle as judged


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    node_id: str
    use_gpu: bool = True
    use_nvml: bool = True
    nvidia_smi: str | None = None
    ib_root: Path = Path("/sys/class/infiniband")
    fabrics: Fabrics = ()
    expect_gpus: int | None = None
    expect_hcas: int | None = None
    owned_pids: Callable[[], Collection[int]] = tuple  # of our engines
    owned_gpus: Callable[[], Collection[str]] = tuple  # UUIDs that our engines were given
    severities: Mapping[str, str] = field(default_factory=dict)  # problem code → unplaceable, warning or ignore
    gpu_classes: tuple[tuple[str, str], ...] = ()  # regular expression over the whole card name, class
    also_warned: Callable[[], tuple[str, ...]] = tuple  # sentences of the node that no hardware tells
    kernel_log: Path = xid.KMSG
    steady_seconds: float = 0.0  # looks closer together count as one for what must be seen twice, and for growth


#: Counters of a port that should not grow [InfiniBand's, then RoCE's].
ERRORS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "port_xmit_discards",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """A port's counters, and how its errors had grown by then."""

    at: float
    values: dict[str, int]
    per_hour: dict[str, float] | None


class Discovery:
    """One machine's eyes. Not for two threads at once."""

    def __init__(self, options: DiscoveryOptions) -> None:
        self._options = options
        self._nvml = nvml.Nvml()
        self._steady: steady.Memory | None = None
        self._steady_at = 0.0
        self._last: tuple[Gpu, ...] = ()  # of the last look that saw cards
        self._seen_at = 0.0
        self._counters: dict[tuple[str, int], _Counted] = {}

    def look(self) -> Inventory:
        """Read everything once; blocks for at most some seconds. Never raises for sick hardware: it says so instead."""
        options = self._options
        found = self._gpus() if options.use_gpu else Found(source="none")
        adapters = infiniband.read(options.ib_root, options.fabrics)
        addresses.fill(adapters)
        self._count(adapters)
        also = options.also_warned()
        return Inventory(
            lasting_warnings=also,
            data={
                "version": inventory.VERSION,
                "node_id": options.node_id,
                "source": found.source,
                "driver": found.driver,
                "cuda": found.cuda,
                "error": found.error,
                "warnings": [
                    *also,
                    *inventory.warnings(
                        found,
                        adapters,
                        options.fabrics,
                        expect_gpus=options.expect_gpus,
                        expect_hcas=options.expect_hcas,
                        asked_for_gpus=options.use_gpu,
                        severities=options.severities,
                    ),
                ],
                "problems": found.problems,
                "gpus": found.gpus,
                "domains": found.domains,
                "adapters": adapters,
            },
        )

    def _gpus(self) -> Found:
        options = self._options
        before = options.owned_pids()
        found = finish(
            self._read(),
            owned_pids={*before, *options.owned_pids()},  # one may start or end while the cards are read
            owned_gpus=options.owned_gpus(),
            severities=options.severities,
            overrides=options.gpu_classes,
        )
        found = self._broken(found)
        found = replace(found, gpus=with_xids(found.gpus, options.kernel_log, options.severities))
        return replace(found, gpus=self._settled(found.gpus))

    def _settled(self, gpus: list[Gpu]) -> list[Gpu]:
        """What forbids a card is remembered as soon as it is seen; the rest by looks that are far enough apart."""
        after, settled = steady.settle(self._steady, gpus)
        now = time.monotonic()
        far = now - self._steady_at >= self._options.steady_seconds
        if self._steady is None or far or steady.forbidden(after) - steady.forbidden(self._steady):
            self._steady, self._steady_at = after, now
        return settled

    def _count(self, adapters: list[dict[str, Any]]) -> None:
        """Each port's errors since it was counted before, by the hour: a counter alone is history."""
        before, self._counters = self._counters, {}
        for adapter in adapters:
            for port in adapter["ports"]:
                key = (adapter["hca"], port["port"])
                counted = self._counted(before.get(key), self._options.ib_root / key[0] / "ports" / str(key[1]))
                self._counters[key] = counted
                port["errors_per_hour"] = counted.per_hour

    def _counted(self, before: _Counted | None, port: Path) -> _Counted:
        now = time.monotonic()
        if before is not None and now - before.at < self._options.steady_seconds:
            return before
        values = link_counters.read(port)
        grown = link_counters.growth(before.values, values, now - before.at) if before is not None else {}
        per_hour = {name: round(grown[name].per_second * 3600, 1) for name in ERRORS if name in grown}
        return _Counted(at=now, values=values, per_hour=per_hour or None)

    def _broken(self, found: Found) -> Found:
        """All cards gone at once: detection is broken, not the machine emptied. What was known stays, unplaceable."""
        if found.gpus:
            self._last, self._seen_at = tuple(found.gpus), time.monotonic()
            return found
        if not self._last:
            return found
        ago = time.monotonic() - self._seen_at
        text = f"detection is broken: {len(self._last)} GPUs were there {ago:.0f} s ago and none is seen now"
        if found.error:
            text += f" ({found.error})"
        told = judged([problem("detection_broken", text)], self._options.severities)
        gpus = [{**gpu, "problems": [*gpu["problems"], *told], "placeable": placeable(told)} for gpu in self._last]
        return replace(found, source="unavailable", error=found.error or f"cannot see the GPUs: {text}", gpus=gpus)

    def _read(self) -> Found:
        """The first source that answers; else the one that says most. A program named by hand is asked alone."""
        named = self._options.nvidia_smi
        if named is not None:
            return nvidia_smi.read(named)
        told = []
        for read in (*((self._nvml.read,) if self._options.use_nvml else ()), lambda: nvidia_smi.read(None), amd.read):
            found = read()
            if found.source not in ("none", "unavailable"):
                return found  # also where another vendor left a library without a driver
            told.append(found)
        return max(told, key=lambda found: (bool(found.gpus), found.error is not None))


def discover(options: DiscoveryOptions) -> Inventory:
    """A single look."""
    return Discovery(options).look()


def with_xids(gpus: list[Gpu], kernel_log: Path, severities: Mapping[str, str] = NO_CHANGES) -> list[Gpu]:
    if not gpus:
        return gpus
    told = xid.attach(gpus, xid.parse(xid.read(kernel_log)))
    out = []
    for gpu in gpus:
        found = told.get(gpu["bus"] or "")
        if found is None or gpu["mig"] is not None:
            out.append(gpu)
            continue
        more = judged([found], severities)
        problems = judged([*gpu["problems"], *more])
        out.append({**gpu, "problems": problems, "placeable": gpu["placeable"] and placeable(more)})
    return out
