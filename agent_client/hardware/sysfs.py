"""Careful reading of /sys: a file may be missing, refuse (EINVAL), vanish meanwhile or hold junk. Nothing raises."""

import os
import re
from pathlib import Path

#: sysfs hands out at most one page per attribute.
_PAGE_BYTES = 4096
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def text(path: Path) -> str | None:
    """What the file says on its ends trimmed, printable in any place; None when it says nothing or can't be read."""
    try:
        # Not blocking: whatever lies in place of the file, a reader must come back.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        data = os.read(descriptor, _PAGE_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    decoded = data.decode("utf-8", errors="replace").strip().strip("\0")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in decoded).strip() or None


def natural_number(path: Path) -> int | None:
    """A decimal number from 0 on. `-1` (no NUMA node), `N/A (no PMA)` and the like are no number."""
    value = text(path)
    return int(value) if value and re.fullmatch(r"[0-9]{1,20}", value) else None


def names(path: Path) -> list[str]:
    """The directory's entries, numbers within names in their numeric order; none when it can't be listed."""
    try:
        return sorted(os.listdir(path), key=_numbers_as_numbers)
    except (OSError, ValueError):
        return []


def pci_address(path: Path) -> str | None:
    """The nearest PCI device at or above what `path` links to, as sysfs spells it."""
    parts = Path(os.path.realpath(path)).parts
    return next((part for part in reversed(parts) if _PCI_ADDRESS.fullmatch(part)), None)


def _numbers_as_numbers(name: str) -> list[tuple[int, int, str]]:
    """`mlx5_10` after `mlx5_9`."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if re.fullmatch(r"[0-9]+", part) else (1, 0, part) for part in parts]
