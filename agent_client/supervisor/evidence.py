"""What a failed engine leaves behind, made fit to be told: its output without secrets, and the cause found in it."""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_client.engines.diagnosis import UNKNOWN, Diagnosis, ExitCause, bare, diagnose
from agent_client.protocol.states import FailureCode

TAIL_LINES = 40
TAIL_BYTES = 65_536
LINE_LONGEST = 16_384
LINE_TOLD = 300
OUTPUT_BYTES = 1024 * 1024  # some 8,000 lines: the cause stands at the beginning of the noise, which may be long
SECRET_SHORTEST = 6  # shorter ones would blacken ordinary words


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    code: str
    detail: str
    hint: str = ""


def read_output(path: Path, *, most_bytes: int) -> list[str]:
    """The last lines of an engine, its previous file included when the current one was begun a moment ago."""
    data = _last_bytes(path, most_bytes)
    if len(data) < most_bytes:
        data = _last_bytes(rotated(path), most_bytes - len(data)) + data
    text = data.decode("utf-8", errors="replace").replace("\x00", "")
    return [line[:LINE_LONGEST] for line in text.splitlines()]


def rotated(path: Path) -> Path:
    """Where the supervisor keeps the part that it cut off."""
    return path.with_suffix(".1.log")


def redacted(lines: Iterable[str], secrets: Iterable[str]) -> list[str]:
    """Engines print their arguments, keys included."""
    hidden = sorted({s for s in secrets if len(s) >= SECRET_SHORTEST}, key=len, reverse=True)
    if not hidden:
        return list(lines)
    pattern = re.compile("|".join(map(re.escape, hidden)))
    return [pattern.sub("(secret)", line) for line in lines]


def failure_of_exit(
    replica: str, lines: Sequence[str], *, exit_code: int | None, exit_signal: int | None, seen: bool = True
) -> Failure:
    """For an engine that ended though nobody asked it to; also with exit code 0. `seen` False: no agent watched."""
    ended = ExitCause(code=exit_code, signal=exit_signal)
    found = diagnose(lines, ended)
    if exit_signal is not None:
        how = f"it was ended by {_name(exit_signal)}"
    elif exit_code is not None:
        how = f"it exited with code {exit_code}"
    else:
        how = "it ended while no agent watched it"
    if found.code == UNKNOWN:
        code = FailureCode.EXITED.value if seen else FailureCode.LOST_TRACK.value
        return Failure(code=code, detail=f"cannot run {replica}: {how}{_told(found)}")
    # Nobody saw the end: the output tells why at most, not that.
    code = found.code if seen else FailureCode.LOST_TRACK.value
    return Failure(code=code, detail=f"cannot run {replica}: {found.sentence} ({how}){_told(found)}", hint=found.hint)


def failure_of_start(replica: str, lines: Sequence[str], deadline_seconds: float) -> Failure:
    """For an engine that runs but did not get ready in its time."""
    found = diagnose(lines)
    code = FailureCode.START_TIMEOUT.value
    late = f"it was not ready within {deadline_seconds:g} s"
    if found.code != UNKNOWN:
        detail = f"cannot run {replica}: {late}: {found.sentence}{_told(found)}"
        return Failure(code=code, detail=detail, hint=found.hint)
    last = next((bare(line) for line in reversed(lines) if line.strip()), "")
    told = f"its last line: {last[:LINE_TOLD]}" if last else "it wrote nothing"
    return Failure(
        code=code, detail=f"cannot run {replica}: {late}; {told}", hint="raise start_timeout_seconds if it only loads"
    )


def of_card(replica: str, failure: Failure, card: str, hint: str) -> Failure:
    """The same for an engine whose card went: that comes first, whatever the engine made of it."""
    rest = failure.detail.removeprefix(f"cannot run {replica}: ")
    detail = f"cannot run {replica}: {card}; then {rest}"
    return Failure(code=FailureCode.GPU_MISSING.value, detail=detail, hint=hint or failure.hint)


def _told(found: Diagnosis) -> str:
    return f"; it wrote: {bare(found.line)[:LINE_TOLD]}" if found.line else ""


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _last_bytes(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            return file.read(most)
    except OSError:
        return b""
