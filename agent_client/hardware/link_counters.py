"""Counters of a port as growth between two readings. A value alone is history: counters stick at their largest number
and keep what happened before anybody looked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_client.hardware import sysfs

#: Bits of the counters that hold at their end (InfiniBand's PortCounters), unless the adapter has wider ones.
_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_data": 32,
    "port_rcv_data": 32,
    "port_xmit_packets": 32,
    "port_rcv_packets": 32,
    "port_xmit_wait": 32,
}
#: Data is counted in 4-byte words.
_WORD_BYTES = 4
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`amount` in bytes for data, else in events. `at_least`: the counter reached its end and stopped counting."""

    amount: int
    per_second: float
    at_least: bool = False


def read(port: Path) -> dict[str, int]:
    """All counters of `…/ports/<n>` that are numbers; `N/A (no PMA)` is absent. 64-bit ones replace 32-bit ones."""
    out = {}
    for folder in ("counters", "hw_counters"):
        out.update(_numbers(port / folder))
    for name, value in _numbers(port / "counters_ext").items():
        out[name.removesuffix("_64")] = value
    return out


def growth(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, Growth]:
    """What happened in between. Absent: counters that one reading lacks, that went back (reset), or that stood at
    their end already, where nothing can be told."""
    if not 0 < seconds < float("inf"):
        return {}
    out = {}
    for name in sorted(before.keys() & after.keys()):
        first, second = before[name], after[name]
        if second < first or (first == second and _at_end(name, first)):
            continue
        amount = (second - first) * (_WORD_BYTES if _counts_words(name) else 1)
        out[name] = Growth(amount=amount, per_second=amount / seconds, at_least=_at_end(name, second))
    return out


def _at_end(name: str, value: int) -> bool:
    """Exactly the largest number: a wider counter passes it."""
    return value == 2 ** _BITS.get(name, 64) - 1 or value == 2**64 - 1


def _counts_words(name: str) -> bool:
    return name in ("port_xmit_data", "port_rcv_data")


def _numbers(folder: Path) -> dict[str, int]:
    read = {name: sysfs.natural_number(folder / name) for name in sysfs.names(folder) if _NAME.fullmatch(name)}
    return {name: value for name, value in read.items() if value is not None}
