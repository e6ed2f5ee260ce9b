"""Xid errors from the kernel log: `NVRM: Xid (PCI:0000:61:00): 79, pid=1234, GPU has fallen off the bus.`

The kernel log is since boot, so a reboot clears a card; where the driver tells a recovery action, its word is newer and
counts. What each code asks for is NVIDIA's catalogue of October 2025; a code that it does not list is a warning.
"""

import errno
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_client.hardware.problems import UNPLACEABLE, WARNING, problem

KMSG = Path("/dev/kmsg")
#: The ring's usual size is 256 KiB to a few MiB; more is not read at once.
_MOST_RECORDS = 100_000
_LONGEST_RECORD = 8192

#: NVIDIA asks for a reset of the card, a reboot, or its NVLink and double-bit workflows.
FATAL = frozenset(
    (46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149, 150, 155, 156, 158)
)
#: One application's own trouble, or nothing to do.
QUIET = frozenset(
    (8, 11, 13, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, 63, *range(66, 73), 75, 76, 77, 80, *range(82, 87), 88, 89)
).union((92, 93, 94, *range(96, 108), 121, *range(126, 136), 137, 139, 141, 152, 153, 157, 160, 161))
_REBOOT = frozenset((79,))
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): ([0-9]{1,4})(?:, ?(.*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    bus: str  # "0000:61:00.0"
    code: int
    text: str  # what the driver wrote after the code


def parse(lines: Iterable[str]) -> dict[str, Xid]:
    """The gravest of each card, the latest where several are as grave; quiet codes are passed over."""
    found: dict[str, Xid] = {}
    for line in lines:
        match = _LINE.search(line)
        if match is None or int(match.group(2)) in QUIET:
            continue
        domain, _, rest = match.group(1).lower().partition(":")
        each = Xid(bus=f"{domain[-4:]}:{rest}.0", code=int(match.group(2)), text=(match.group(3) or "").strip()[:200])
        before = found.get(each.bus)
        if before is None or before.code not in FATAL or each.code in FATAL:
            found[each.bus] = each
    return found


def judge(xid: Xid, recovery_action: int | str | None) -> dict[str, str]:
    """`recovery_action`: what the driver asks for now, where it can tell."""
    text = f"Xid {xid.code} in the kernel log" + (f" ({xid.text})" if xid.text else "")
    if xid.code in _REBOOT:
        found = problem("xid", text, hint="reboot the machine; if it comes back, reseat or replace the card")
    else:
        found = problem("xid", text)
    nothing_asked = str(recovery_action).lower() in ("0", "none") if recovery_action is not None else False
    severity = UNPLACEABLE if xid.code in FATAL and not nothing_asked else WARNING
    return {**found, "severity": severity}


def attach(gpus: Iterable[Mapping[str, object]], xids: Mapping[str, Xid]) -> dict[str, dict[str, str]]:
    """Bus → its problem, for cards that are there."""
    out = {}
    for gpu in gpus:
        bus = gpu.get("bus")
        if isinstance(bus, str) and bus in xids and gpu.get("mig") is None:
            health = gpu.get("health")
            action = health.get("recovery_action") if isinstance(health, Mapping) else None
            out[bus] = judge(xids[bus], action)
    return out


def read(path: Path = KMSG) -> list[str]:
    """The kernel log's lines, oldest first; none where it can't be read (it needs root or CAP_SYSLOG)."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    lines: list[str] = []
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(handle, _LONGEST_RECORD)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten under us: go on with what is there
                break
            if not record:
                break
            lines += record.decode("utf-8", errors="replace").splitlines()
    finally:
        os.close(handle)
    return lines
