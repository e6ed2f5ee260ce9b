"""What every source leaves to do: NUMA node, owners of processes, who else is on a card, the site's own words."""

import os
import pwd
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_client.hardware.cards import Found, Gpu
from agent_client.hardware.classes import gpu_class
from agent_client.hardware.health import foreign, judge_use, placeable, settle
from agent_client.hardware.problems import NO_CHANGES

PCI = Path("/sys/bus/pci/devices")
PROC = Path("/proc")


def finish(
    found: Found,
    *,
    owned_pids: Collection[int] = (),
    owned_gpus: Collection[str] = (),
    severities: Mapping[str, str] = NO_CHANGES,
    overrides: Iterable[tuple[str, str]] = (),
    pci: Path = PCI,
    proc: Path = PROC,
) -> Found:
    """The inventory's GPUs as they are shown. `owned_pids`: of engines of ours, while the cards were read.

    In a container the driver may tell another namespace's pids, or none: on `owned_gpus`, those that hold an engine of
    ours, what can't be seen here is taken for ours.
    """
    rules = tuple(overrides)
    totals = {gpu["uuid"]: gpu for gpu in found.gpus if gpu["uuid"]}
    gpus = []
    for gpu in found.gpus:
        listed = [
            {**process, "user": process["user"] or user_of(process["pid"], process["name"], proc)}
            for process in gpu["processes"]
        ]
        ours = set(owned_pids)
        hidden = {each["pid"] for each in listed if not (proc / str(each["pid"])).exists()}
        own_card = gpu["uuid"] in owned_gpus
        if own_card:
            ours |= hidden
        blocking = foreign(listed, ours)
        processes = [{**process, "foreign": process in blocking} for process in listed]
        unseen = own_card and len(hidden) == len(listed)  # an engine of ours holds it, and its process is not told
        split = gpu.get("mig_mode") == "enabled"  # its slices tell what they use
        used = None if gpu["shared_memory"] or unseen or split else gpu["memory_used_mib"]
        use = judge_use(listed, used, owned_pids=ours)
        problems = settle([*gpu["problems"], *use], severities)
        usable = gpu["uuid"] is not None and not split
        gpus.append(
            {
                **gpu,
                "class": _class(gpu, totals, rules),
                "numa": gpu["numa"] if gpu["numa"] is not None else numa_node(gpu["bus"], pci),
                "processes": processes,
                "problems": problems,
                "placeable": usable and placeable(problems),
            }
        )
    return replace(found, gpus=gpus, problems=settle(found.problems, severities))


def numa_node(bus: str | None, pci: Path = PCI) -> int | None:
    """The CPU node that the card hangs on; sysfs says -1 where the firmware does not tell."""
    try:
        text = (pci / (bus or "-") / "numa_node").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def user_of(pid: int | None, name: str | None, proc: Path = PROC) -> str | None:
    """Who runs it. In a container the pid may be another machine's view, so the program has to be the same."""
    if pid is None or name is None:
        return None
    try:
        program = (proc / str(pid) / "cmdline").read_bytes().split(b"\0", 1)[0].decode("utf-8", errors="replace")
        uid = (proc / str(pid)).stat().st_uid
    except OSError:
        return None
    words = program.split(None, 1)
    if not words or os.path.basename(words[0]) != os.path.basename(name):
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _class(gpu: Gpu, totals: Mapping[str, Gpu], overrides: tuple[tuple[str, str], ...]) -> str | None:
    """The owner's class for the card, and so for its MIG devices."""
    mig: Mapping[str, Any] = gpu["mig"] or {}
    card = totals.get(mig.get("parent", ""), gpu)
    if not overrides or card["name"] is None:
        return gpu["class"]
    profile = (mig.get("profile") or "") if mig else None
    return gpu_class(card["name"], card["memory_total_mib"], mig_profile=profile, overrides=overrides)
