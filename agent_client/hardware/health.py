"""Raw health figures of a card → problems. Pure; a figure that is None is unknown and never counts as good or bad.

The codes, their default severities and whose judgement they are stand in problems.py.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_client.hardware.problems import NO_CHANGES, PROBLEMS, placeable, problem, settle

__all__ = ["PROBLEMS", "Figures", "foreign", "judge", "judge_use", "placeable", "problem", "settle"]


#: Retired pages at which a card is to be returned [DCGM health watch].
RETIRED_PAGES_LIMIT = 63
DOUBLE_BIT_PAGES_LIMIT = 15
#: Rows remapped for uncorrectable errors [DCGM health watch].
REMAPPED_ROWS_LIMIT = 512
#: Desktop programs below this sum are no obstacle: an idle X server holds 4 to 30 MiB.
GRAPHICS_LIMIT_MIB = 100
#: Used, named by no process: contexts and reserve of older drivers stay well below.
HELD_LIMIT_MIB = 1024


_RECOVERY = ("none", "reset", "reboot", "drain P2P", "drain and reset", "restart IMEX", "bus reset", "reboot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a source told about one card's health; None is "not told"."""

    lost: bool | None = None
    reset_required: bool | None = None
    recovery_action: int | str | None = None  # NVML's number or nvidia-smi's words
    ecc_volatile_uncorrectable: int | None = None  # since the driver was loaded
    ecc_aggregate_uncorrectable: int | None = None  # of the card's life: history, never a problem of today
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    remapped_uncorrectable: int | None = None
    unrepairable_memory: bool | None = None
    repair_pending: bool | None = None
    sram_threshold: bool | None = None
    retired_pages: int | None = None
    retired_double_bit: int | None = None
    retired_double_bit_this_week: int | None = None
    retired_pending: bool | None = None
    throttled: frozenset[str] = field(default_factory=frozenset)  # codes: hw_slowdown, hw_thermal, …
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_health: str | None = None
    mig_current: str | None = None
    mig_pending: str | None = None


def judge(figures: Figures, *, severities: Mapping[str, str] = NO_CHANGES) -> list[dict[str, str]]:
    """All problems that the figures show, unplaceable ones first."""
    found = [*_reset(figures), *_memory(figures), *_pages(figures), *_rest(figures)]
    return settle(found, severities)


def judge_use(
    processes: Iterable[Mapping[str, Any]],
    memory_used_mib: int | None,
    *,
    owned_pids: Collection[int] = (),
    severities: Mapping[str, str] = NO_CHANGES,
) -> list[dict[str, str]]:
    """Who else is on the card, and memory that nobody visible holds."""
    listed = list(processes)
    blocking = foreign(listed, owned_pids)
    if blocking:
        return settle([problem("foreign_process", _who(blocking, memory_used_mib))], severities)
    sizes = [process.get("memory_mib") for process in listed]
    if memory_used_mib is None or None in sizes:
        return []
    held = memory_used_mib - sum(size for size in sizes if size is not None)
    if held < HELD_LIMIT_MIB:
        return []
    text = f"{held} of {memory_used_mib} MiB used are held by no process that is visible here"
    return settle([problem("memory_held", text)], severities)


def foreign(processes: Iterable[Mapping[str, Any]], owned_pids: Collection[int] = ()) -> list[Mapping[str, Any]]:
    """Those in the way of ours. Compute always is; desktop programs from GRAPHICS_LIMIT_MIB together."""
    others = [process for process in processes if process.get("pid") not in owned_pids]
    compute = [process for process in others if "C" in (process.get("type") or "C")]
    graphics = sum(process.get("memory_mib") or 0 for process in others if process not in compute)
    return compute if graphics < GRAPHICS_LIMIT_MIB else others


def _reset(figures: Figures) -> Iterable[dict[str, str]]:
    if figures.lost:
        yield problem("lost", "the driver has lost the card")
    action = figures.recovery_action
    if isinstance(action, int):
        action = _RECOVERY[action] if 0 <= action < len(_RECOVERY) else f"action {action}"
    if action is not None and action.lower() != "none":
        yield problem("reset_required", f"the driver asks for recovery: {action}")
    elif figures.reset_required:
        yield problem("reset_required", "the driver asks for a reset of the card")


def _memory(figures: Figures) -> Iterable[dict[str, str]]:
    if figures.ecc_volatile_uncorrectable:
        text = f"{figures.ecc_volatile_uncorrectable} uncorrectable memory errors since the driver was loaded"
        yield problem("ecc_uncorrectable", text)
    if figures.remap_failed:
        yield problem("row_remap_failed", "a row of memory could not be remapped")
    if figures.remap_pending:
        yield problem("row_remap_pending", "a row of memory waits for a reset to be remapped")
    if (figures.remapped_uncorrectable or 0) >= REMAPPED_ROWS_LIMIT:
        yield problem("row_remap_limit", f"{figures.remapped_uncorrectable} rows were remapped")
    if figures.unrepairable_memory:
        yield problem("unrepairable_memory", "the driver calls the card's memory unrepairable")
    if figures.repair_pending:
        yield problem("repair_pending", "a repair of the card waits for a reset")
    if figures.sram_threshold:
        yield problem("sram_threshold", "SRAM errors have passed the card's threshold")


def _pages(figures: Figures) -> Iterable[dict[str, str]]:
    pages, double, week = figures.retired_pages, figures.retired_double_bit, figures.retired_double_bit_this_week
    if pages is not None and pages >= RETIRED_PAGES_LIMIT:
        yield problem("retired_pages_limit", f"{pages} pages of memory are retired, {RETIRED_PAGES_LIMIT} is the limit")
    elif double is not None and double > DOUBLE_BIT_PAGES_LIMIT and week is not None and week > 1:
        yield problem("retired_pages_limit", f"{double} pages are retired for double-bit errors, {week} this week")
    if figures.retired_pending:
        yield problem("retired_pages_pending", "a page of memory waits for a reboot to be retired")


_THROTTLE = {
    "hw_slowdown": "the card slows itself down (hardware)",
    "hw_thermal": "the card is too hot and slows down",
    "sw_thermal": "the driver slows the card down for its temperature",
    "power_brake": "an external power brake slows the card down",
}


def _rest(figures: Figures) -> Iterable[dict[str, str]]:
    for code, text in _THROTTLE.items():
        if code in figures.throttled:
            yield problem(code, text)
    state, status = figures.fabric_state, figures.fabric_status
    wrong = None if status is None or status.lower() == "success" else status
    if state is not None and state.lower() != "completed":
        yield problem("fabric_not_ready", f"its NVLink fabric is {state}" + (f" ({wrong})" if wrong else ""))
    elif wrong is not None:
        yield problem("fabric_not_ready", f"its NVLink fabric is {state or 'known'}, but: {wrong}")
    elif figures.fabric_health is not None and figures.fabric_health.lower() != "healthy":
        yield problem("fabric_not_ready", f"its NVLink fabric is {figures.fabric_health}")
    current, pending = figures.mig_current, figures.mig_pending
    if current is not None and pending is not None and current.lower() != pending.lower():
        yield problem("mig_pending", f"MIG is {current.lower()} and will be {pending.lower()} after a reset")


def _who(blocking: list[Mapping[str, Any]], memory_used_mib: int | None) -> str:
    """Names and pids, the biggest first, and how much of what is used they explain."""
    ordered = sorted(blocking, key=lambda process: -(process.get("memory_mib") or 0))
    shown = [
        f"{process.get('name') or 'a process'} (pid {process.get('pid')}"
        + (f" of {process['user']}" if process.get("user") else "")
        + (f", {process['memory_mib']} MiB)" if process.get("memory_mib") is not None else ")")
        for process in ordered[:3]
    ]
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    used = f"; {memory_used_mib} MiB are used" if memory_used_mib is not None else ""
    return f"used by {', '.join(shown)}{more}{used}"
