"""GPUs from `nvidia-smi --query-gpu` as CSV. It may be missing, slow or lie: text and code are judged together."""

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from typing import Any

from agent_client.hardware.classes import gpu_class

FIELDS = ("index", "name", "uuid", "pci.bus_id", "driver_version", "memory.total", "memory.used", "mig.mode.current")
#: Newer drivers only: one unknown field fails the whole call, so it is asked for and then left out.
OPTIONAL = ("compute_cap",)
DEADLINE_SECONDS = 5.0
_UNKNOWN = re.compile(
    r"\[?(n/?a|not supported|unknown error|insufficient permissions|gpu is lost|gpu requires reset|not found|"
    r"err!|requested functionality has been deprecated)?\]?\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    source: str
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str | None = None
    error: str | None = None


def read(program: str | None) -> Found:
    path = program or shutil.which("nvidia-smi")
    if path is None:
        return Found(source="none")
    for names in ((*FIELDS, *OPTIONAL), FIELDS):
        code, text = _run([path, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"])
        if code == 0 or "is not a valid field" not in text:
            break
    if code != 0 or "No devices were found" in text:
        return Found(source="unavailable", error=f"cannot read GPUs from nvidia-smi: {text.strip()[:300] or code}")
    return parse(text, names)


def parse(text: str, names: tuple[str, ...]) -> Found:
    """CSV lines → GPUs; a line that is not CSV of that shape is skipped."""
    gpus, driver = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names) or not cells[0].isdecimal():
            continue
        row = {name: (None if _UNKNOWN.match(cell) else cell) for name, cell in zip(names, cells, strict=True)}
        driver = driver or row["driver_version"]
        gpus.append(_gpu(row))
    return Found(source="nvidia-smi", gpus=gpus, driver=driver)


def _gpu(row: dict[str, str | None]) -> dict[str, Any]:
    total = _integer(row["memory.total"])
    mig = (row.get("mig.mode.current") or "").lower() == "enabled"
    problems = []
    if row["uuid"] is None:
        problems.append(_problem("not_answering", "unplaceable", "the card does not tell its UUID"))
    if mig:
        problems.append(_problem("mig_pending", "warning", "MIG is on: the whole card is not placeable"))
    return {
        "index": _integer(row["index"]),
        "uuid": row["uuid"],
        "name": row["name"],
        "class": gpu_class(row["name"] or "unknown", total),
        "bus": _bus(row["pci.bus_id"]),
        "memory_total_mib": total,
        "memory_used_mib": _integer(row["memory.used"]),
        "compute_capability": row.get("compute_cap"),
        "numa": None,
        "domain": None,
        "mig": None,
        "placeable": row["uuid"] is not None and not mig,
        "shared_memory": total is None,
        "processes": [],
        "problems": problems,
    }


def _problem(code: str, severity: str, text: str, hint: str = "") -> dict[str, str]:
    return {"code": code, "severity": severity, "text": text, "hint": hint}


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _bus(text: str | None) -> str | None:
    """sysfs spelling: 4-digit domain, lower case."""
    if text is None:
        return None
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _run(argv: list[str]) -> tuple[int, str]:
    """Exit code and output; a hanging program is left behind after the kill (state D can't be waited for)."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        child = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    try:
        output, _ = child.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            pass
        return 124, f"it did not answer within {DEADLINE_SECONDS:g} s"
    return child.returncode, output.decode("utf-8", errors="replace")
