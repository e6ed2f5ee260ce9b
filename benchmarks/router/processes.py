"""What a tree of processes has used of the processor, and what it holds of the memory, from /proc."""

import os
from pathlib import Path

#: Where the kernel tells of processes.
PROC = Path("/proc")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time together. The kernel knows them to the nanosecond and shows them in ticks of 10 ms."""
    return sum((int(fields[11]) + int(fields[12])) * _TICK_SECONDS for pid in pids if (fields := _stat(pid)))


def waited_seconds(pids: list[int]) -> float | None:
    """How long they were ready to run while something else had the core: how busy the machine is with others.

    None where the kernel does not tell (it keeps no such figures, or a sandbox hides them): that is not 0.
    """
    tasks = [task for pid in pids for task in (PROC / str(pid) / "task").glob("*/schedstat")]
    told = [nanoseconds for task in tasks if (nanoseconds := _waited(task)) is not None]
    return sum(told) / 1e9 if told else None


def _waited(task: Path) -> int | None:
    """The second of run time, time waited, and number of slices; None for a thread that has ended since."""
    try:
        return int(task.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def mib(pid: int) -> float:
    """PSS: pages that processes share count for each in part, so the sum over a tree is right."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold anything: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
