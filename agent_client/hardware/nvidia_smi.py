"""GPUs by running nvidia-smi: XML first, CSV where that fails, then fewer fields. It may be missing, slow or lie."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent_client.hardware import nvidia_csv, nvidia_list, nvidia_xml, program
from agent_client.hardware.cards import Found, HostMemory
from agent_client.hardware.nvidia_failures import classify, sentence, unreadable_cards
from agent_client.hardware.nvidia_list import ListedCard

__all__ = ["DEADLINE_SECONDS", "Found", "read"]

DEADLINE_SECONDS = 5.0
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Smi:
    path: str
    deadline_seconds: float  # of one run
    until: float  # of all runs, on the monotonic clock

    def __call__(self, *arguments: str) -> program.Output:
        left = min(self.deadline_seconds, self.until - time.monotonic())
        if left <= 0:
            return program.Output(code=None, errors="no time is left for another question")
        return program.run([self.path, *arguments], deadline_seconds=left)


def read(path: str | None, *, deadline_seconds: float = DEADLINE_SECONDS, meminfo: Path = _MEMINFO) -> Found:
    """Never raises. The deadline is of each run; all together take twice that at most (plus a second after a kill)."""
    path = path or shutil.which("nvidia-smi")
    if path is None:
        return Found(source="none")
    until = time.monotonic() + 2 * deadline_seconds
    smi, host = _Smi(path=path, deadline_seconds=deadline_seconds, until=until), host_memory(meminfo)
    output = smi("-q", "-x")
    found = _xml(smi, output, host)
    if found is not None:
        return _with_unreadable(found, output.text)
    failure = classify(output.code, output.text)
    if failure.final:
        return _failed(path, output)
    if unreadable_cards(output.text):
        return _others(smi, output, host)
    return _csv(smi, host, output)


def host_memory(meminfo: Path = _MEMINFO) -> HostMemory | None:
    """For chips whose GPU has no memory of its own."""
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    kib = {}
    for line in lines:
        name, _, rest = line.partition(":")
        cells = rest.split()
        if len(cells) == 2 and cells[1] == "kB" and cells[0].isdecimal():
            kib[name] = int(cells[0]) // 1024
    total = kib.get("MemTotal")
    return HostMemory(total_mib=total, available_mib=kib.get("MemAvailable")) if total else None


def _xml(smi: _Smi, output: program.Output, host: HostMemory | None, listed: Sequence[ListedCard] = ()) -> Found | None:
    """None: no report. A report counts whatever the exit code, since one sick card can spoil that.

    `listed`: where it is known already; a report on some cards alone numbers them from 0, the list among all.
    """
    if output.code is None:
        return None
    found = nvidia_xml.parse(output.text, listed=listed, host=host)
    if found.error or not found.gpus:
        return None
    if not listed and any(gpu["mig_mode"] == "enabled" for gpu in found.gpus):
        found = nvidia_xml.parse(output.text, listed=_listed(smi), host=host)
    if all(gpu["compute_capability"] for gpu in found.gpus):
        return found
    return _with_capabilities(found, smi("--query-gpu=uuid,compute_cap", "--format=csv,noheader,nounits"))


def _csv(smi: _Smi, host: HostMemory | None, first: program.Output) -> Found:
    output = first
    for names in (nvidia_csv.FULL, nvidia_csv.MORE, nvidia_csv.BASIC):
        output = smi(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
        found = nvidia_csv.parse(output.text, names, host=host)
        if output.code is not None and not found.error:
            return _with_unreadable(_completed(smi, output.text, names, host), output.text)
        if classify(output.code, output.text).code != "field_invalid":
            break
    return _failed(smi.path, output)


def _completed(smi: _Smi, text: str, names: Sequence[str], host: HostMemory | None) -> Found:
    """The same rows with what CSV has in other queries: processes, and MIG devices where there are any."""
    apps = smi(f"--query-compute-apps={','.join(nvidia_csv.APPS)}", "--format=csv,noheader,nounits")
    processes = nvidia_csv.parse_apps(apps.text) if apps.code == 0 else {}
    has_mig = any(gpu["mig_mode"] == "enabled" for gpu in nvidia_csv.parse(text, names).gpus)
    listed = _listed(smi) if has_mig and apps.code is not None else ()
    return nvidia_csv.parse(text, names, listed=listed, apps=processes, host=host)


def _others(smi: _Smi, output: program.Output, host: HostMemory | None) -> Found:
    """A card that fails can spoil the report of all: the others are asked for by name."""
    listed = _listed(smi)
    if listed:
        second = smi("-q", "-x", "-i", ",".join(card.uuid for card in listed))
        found = _xml(smi, second, host, listed)
        if found is not None:
            return _with_unreadable(found, output.text)
    return _failed(smi.path, output)


def _listed(smi: _Smi) -> tuple[ListedCard, ...]:
    output = smi("-L")
    return nvidia_list.parse(output.text) if output.code is not None else ()


def _with_unreadable(found: Found, text: str) -> Found:
    """Cards that only an error line names stay in the list with what is known: their bus and their problem."""
    known = {gpu["bus"] for gpu in found.gpus}
    lost = [gpu for gpu in unreadable_cards(text) if gpu["bus"] not in known]
    return replace(found, gpus=[*found.gpus, *lost]) if lost else found


def _with_capabilities(found: Found, output: program.Output) -> Found:
    rows = nvidia_csv.parse(output.text, ("uuid", "compute_cap")).gpus if output.code == 0 else []
    told = {gpu["uuid"]: gpu["compute_capability"] for gpu in rows if gpu["uuid"]}
    for gpu in found.gpus:
        parent = (gpu["mig"] or {}).get("parent")
        gpu["compute_capability"] = gpu["compute_capability"] or told.get(gpu["uuid"]) or told.get(parent)
    return found


def _failed(path: str, output: program.Output) -> Found:
    return Found(
        source="unavailable", gpus=unreadable_cards(output.text), error=sentence(path, output.code, output.text)
    )
