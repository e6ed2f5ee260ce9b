"""Asks NVML about every card and prints one JSON line per step: a program of its own, because the driver may hang it.

Run by path (nvml.py does): it imports nothing of the agent. Lines: `head` (driver, CUDA, count), `begin` before a card
is touched, `card` with what it told, `end`. Who hears nothing after a `begin` knows which card hangs. A figure that a
call does not give is absent, whatever the reason: old driver, no permission, a card without it.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

MOST_LINKS = 64
#: NVML's errors that say something of the whole card, not of one figure.
FAULTS = {4: "no_permission", 15: "lost", 16: "reset_required"}
#: Answers to "is link 0 up?" of a card, or of a driver, that has no NVLink.
_NO_NVLINK = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
#: 2^64-1 is NVML's "not available".
_NO_VALUE = (1 << 64) - 1
_NO_INSTANCE = (1 << 32) - 1
_WEEK = 7 * 86_400
_FIELD_RECOVERY = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, driver 570


def say(kind: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


class Asker:
    """Calls NVML by name; a call that fails gives None, and remembers when the card itself is at fault."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.error: int | None = None  # of the last call

    def __call__(self, name: str, *arguments: Any) -> Any:
        function = getattr(pynvml, name, None)
        self.error = None if function else pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        if function is None:
            return None
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            self.error = error.value
            fault = FAULTS.get(error.value)
            if fault in ("lost", "reset_required"):
                self.fault = fault
            return None
        except Exception:  # pynvml raises others too: text that is no UTF-8, a symbol that this driver lacks
            self.error = pynvml.NVML_ERROR_UNKNOWN
            return None


def text(value: Any) -> str | None:
    """NVML's strings were bytes before release 11.515."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


def words(error: int) -> str | None:
    """The library's own words for an error; it knows those that came after pynvml."""
    try:
        return str(pynvml.NVMLError(error)) if error else None
    except Exception:
        return None


def number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value != _NO_VALUE else None


def mib(value: Any) -> int | None:
    size = number(value)
    return None if size is None else size >> 20


def read_card(handle: Any, ask: Asker) -> dict[str, Any]:
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle)
    mig = ask("nvmlDeviceGetMigMode", handle)
    facts = {
        **memory(handle, ask),
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "mig_mode": list(mig) if mig else None,
        "persistence": ask("nvmlDeviceGetPersistenceMode", handle),
        "power_mw": number(ask("nvmlDeviceGetPowerUsage", handle)),
        "power_limit_mw": number(ask("nvmlDeviceGetPowerManagementLimit", handle)),
        "temperature_celsius": number(ask("nvmlDeviceGetTemperature", handle, 0)),
        "utilisation_percent": getattr(ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
        "throttle": number(throttle(handle, ask)),
        "recovery_action": recovery_action(handle, ask),
        "fabric": fabric(handle, ask),
        "links": links(handle, ask),
        "processes": processes(handle, ask),
        **memory_health(handle, ask),
    }
    if mig and mig[0] == 1:
        facts["migs"] = list(migs(handle, ask))
    return facts


def memory(handle: Any, ask: Asker) -> dict[str, Any]:
    """`used` without the driver's reserve where the driver tells them apart (510)."""
    newer = ask("nvmlDeviceGetMemoryInfo", handle, getattr(pynvml, "nvmlMemory_v2", None))
    info = newer or ask("nvmlDeviceGetMemoryInfo", handle)
    if info is None:
        return {}
    return {
        "memory_total_mib": mib(info.total),
        "memory_used_mib": mib(info.used),
        "memory_reserved_mib": mib(getattr(info, "reserved", None)),
    }


def memory_health(handle: Any, ask: Asker) -> dict[str, Any]:
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    single, double = (retired(handle, ask, cause) for cause in (0, 1))
    return {
        "ecc_volatile": number(ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0)),
        "ecc_aggregate": number(ask("nvmlDeviceGetTotalEccErrors", handle, 1, 1)),
        "remapped_rows": [int(value) for value in rows] if rows else None,
        "retired_single_bit": None if single is None else len(single),
        "retired_double_bit": None if double is None else len(double),
        "retired_double_bit_this_week": this_week(double or ()),
        "retired_pending": ask("nvmlDeviceGetRetiredPagesPendingStatus", handle),
    }


def retired(handle: Any, ask: Asker, cause: int) -> list[int] | None:
    """When each page was retired; 0 where the driver (before 410) or the card (before Pascal) does not tell."""
    pages = ask("nvmlDeviceGetRetiredPages_v2", handle, cause)
    if pages is not None:
        return [int(page["timestamp"]) for page in pages]
    older = ask("nvmlDeviceGetRetiredPages", handle, cause)
    return None if older is None else [0] * len(older)


def this_week(times: Sequence[int]) -> int | None:
    """How many of them. NVML does not say in which unit it counts from 1970: the sizes tell the units apart."""
    if not any(times):
        return None
    seconds = (each / next(unit for unit in (1, 10**3, 10**6, 10**9) if each < unit * 10**11) for each in times)
    return sum(each > time.time() - _WEEK for each in seconds)


def throttle(handle: Any, ask: Asker) -> Any:
    newer = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    return ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) if newer is None else newer


def recovery_action(handle: Any, ask: Asker) -> int | None:
    values = ask("nvmlDeviceGetFieldValues", handle, [_FIELD_RECOVERY])
    if not values or values[0].nvmlReturn != 0:
        return None
    return number(int(values[0].value.uiVal))


def processes(handle: Any, ask: Asker) -> list[dict[str, Any]] | None:
    """None: not told. Drivers before 510 have the older calls alone, which pynvml refuses by a plain exception."""
    found: dict[tuple[int, int | None, int | None], dict[str, Any]] = {}
    told = False
    for kind, name in (("C", "Compute"), ("G", "Graphics"), ("M+C", "MPSCompute")):
        call = f"nvmlDeviceGet{name}RunningProcesses"
        listed = None
        for version in ("_v3", "_v2", ""):
            listed = ask(call + version, handle) if version else oldest_processes(call, handle)
            if listed is not None:
                break
        told = told or listed is not None
        for each in listed or ():
            size = None if each.usedGpuMemory is None else mib(each.usedGpuMemory)
            gi, ci = (instance(getattr(each, name, None)) for name in ("gpuInstanceId", "computeInstanceId"))
            before = found.get((each.pid, gi, ci))  # one that computes and draws is listed twice
            kinds = kind if before is None else f"{before['type']}+{kind}"
            if before is not None and before["memory_mib"] is not None:
                size = max(size or 0, before["memory_mib"])
            who = program(each.pid, ask) if before is None else before["name"]
            told_of = {"pid": each.pid, "type": kinds, "memory_mib": size, "name": who, "gi": gi, "ci": ci}
            found[each.pid, gi, ci] = told_of
    return list(found.values()) if told else None


def instance(value: Any) -> int | None:
    """Of a MIG device; all bits set where the card is whole."""
    return None if value == _NO_INSTANCE else number(value)


class OldProcess(ctypes.Structure):
    """nvmlProcessInfo_t as it was before driver 460."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


def oldest_processes(call: str, handle: Any) -> list[Any] | None:
    """The unsuffixed symbol, for which pynvml has no way of its own any more."""
    count = ctypes.c_uint(0)
    try:
        function = pynvml._nvmlGetFunctionPointer(call)
    except pynvml.NVMLError:
        return None
    if function(handle, ctypes.byref(count), None) not in (0, pynvml.NVML_ERROR_INSUFFICIENT_SIZE):
        return None
    count.value = count.value * 2 + 5
    room = (OldProcess * count.value)()
    return list(room[: count.value]) if function(handle, ctypes.byref(count), room) == 0 else None


def program(pid: int, ask: Asker) -> str | None:
    """Its name without arguments: they may carry keys."""
    name = text(ask("nvmlSystemGetProcessName", pid))
    return name.split(None, 1)[0][:200] if name and name.strip() else None


def links(handle: Any, ask: Asker) -> list[dict[str, Any]] | None:
    """Each NVLink: up, down or not told, and what is at its other end (0 a GPU, 1 an IBM NPU, 2 a switch, 255 unknown).

    None: no link of the card tells anything, which is not the same as having none.
    """
    found: list[dict[str, Any]] = []
    for link in range(MOST_LINKS):
        up = ask("nvmlDeviceGetNvLinkState", handle, link)
        if ask.error == pynvml.NVML_ERROR_INVALID_ARGUMENT or (link == 0 and ask.error in _NO_NVLINK):
            break
        if ask.error == pynvml.NVML_ERROR_NOT_SUPPORTED:
            continue  # not wired on this board
        peer = ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link) if up else None
        kind = number(ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)) if up else None
        bus = text(peer.busId) if peer is not None else None
        found.append({"up": None if up is None else bool(up), "type": kind, "bus": bus})
    else:
        while found and found[-1]["up"] is None:  # where they end was never said
            del found[-1]
    return found if not found or any(link["up"] is not None for link in found) else None


def fabric(handle: Any, ask: Asker) -> dict[str, Any] | None:
    for version in ("_v3", "_v2", None):
        struct = getattr(pynvml, f"c_nvmlGpuFabricInfo{version or ''}_t", None)
        call = "nvmlDeviceGetGpuFabricInfoV" if version else "nvmlDeviceGetGpuFabricInfo"
        if struct is None:
            continue
        info = struct()
        if ask(call, handle, pynvml.byref(info)) is None:
            continue
        return {
            "state": int(info.state) & 0xFF,  # C has one byte here, pynvml four: the rest is what lay in memory
            "status": int(info.status),
            "status_text": words(int(info.status)),
            "cluster": bytes(info.clusterUuid).hex(),
            "clique": int(info.cliqueId),
            "health_mask": int(getattr(info, "healthMask", 0)),
            "health_summary": int(info.healthSummary) if hasattr(info, "healthSummary") else None,
        }
    return None


def migs(handle: Any, ask: Asker) -> Iterator[dict[str, Any]]:
    """All places are tried: between two devices there may be empty ones."""
    for place in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        if device is None:
            continue
        attributes = ask("nvmlDeviceGetAttributes", device)
        yield {
            "device": place,
            "uuid": text(ask("nvmlDeviceGetUUID", device)),
            "name": text(ask("nvmlDeviceGetName", device)),
            "gi": number(ask("nvmlDeviceGetGpuInstanceId", device)),
            "ci": number(ask("nvmlDeviceGetComputeInstanceId", device)),
            "sms": number(getattr(attributes, "multiprocessorCount", None)),
            "processes": processes(device, ask),
            **memory(device, ask),
        }


def read_all(skip: frozenset[int]) -> None:
    ask = Asker()
    count = pynvml.nvmlDeviceGetCount()
    cuda = number(ask("nvmlSystemGetCudaDriverVersion_v2") or ask("nvmlSystemGetCudaDriverVersion"))
    driver = text(ask("nvmlSystemGetDriverVersion"))
    say("head", driver=driver, cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None, count=count)
    for index in range(count):
        if index not in skip:
            say("begin", index=index)
            say("card", index=index, **one(index))
    say("end")


def one(index: int) -> dict[str, Any]:
    ask = Asker()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return {"fault": FAULTS.get(error.value, "not_answering"), "error": str(error)}
    pci = ask("nvmlDeviceGetPciInfo", handle)
    identity = {
        "uuid": text(ask("nvmlDeviceGetUUID", handle)),
        "bus": text(pci.busId) if pci is not None else None,
        "name": text(ask("nvmlDeviceGetName", handle)),
    }
    say("identity", index=index, **identity)
    facts = read_card(handle, ask)
    return {**identity, **facts, "fault": ask.fault}


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--skip", default="", help="indexes of cards that are not to be touched")
    skip = frozenset(int(word) for word in parser.parse_args().skip.split(",") if word)
    if _guarded(pynvml.nvmlInit):
        _guarded(lambda: read_all(skip))
    return 0


def _guarded(step: Callable[[], None]) -> bool:
    try:
        step()
    except pynvml.NVMLError as error:
        say("failed", code=error.value, error=str(error))
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
