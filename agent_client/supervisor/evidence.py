"""What a failed engine leaves behind, made fit to be told: its output without secrets, and the cause found in it."""

import json
import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_client.engines import Miss, Probed
from agent_client.engines.diagnosis import (
    UNKNOWN,
    UNSEEN,
    Diagnosis,
    ExitCause,
    bare,
    diagnose,
    exception_line,
    last_words,
)
from agent_client.machine import Failure
from agent_client.profile import Problem
from agent_client.protocol.states import FailureCode

TAIL_LINES = 40
HEAD_LINES = 40
HEAD_BYTES = 16_384
RECORD_LINE = 1_000
#: Bytes in a frame: all shards of a node report together, and a frame holds 1 MiB.
TAIL_TOLD, HEAD_TOLD, PROBLEMS_TOLD = 32_768, 8_192, 16_384
MOST_PROBLEMS = 30
TAIL_BYTES = 65_536
LINE_LONGEST = 16_384
LINE_TOLD = 300
OUTPUT_BYTES = 1024 * 1024  # some 8,000 lines: the cause stands at the beginning of the noise, which may be long
SECRET_SHORTEST = 6  # shorter ones would blacken ordinary words


def read_output(path: Path, *, most_bytes: int, until: int | None = None) -> list[str]:
    """The last lines of an engine (before the offset `until`), with its previous file where this one is young."""
    data = _last_bytes(path, most_bytes, until)
    if len(data) < most_bytes:
        data = _last_bytes(rotated(path), most_bytes - len(data)) + data
    text = data.decode("utf-8", errors="replace").replace("\x00", "")
    # Not splitlines(): binary output holds all that it takes for the end of a line.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n") if text else []
    return [line[:LINE_LONGEST] for line in lines]


def read_head(path: Path) -> list[str]:
    """The first lines: versions and arguments."""
    try:
        with path.open("rb") as file:
            data = file.read(HEAD_BYTES)
    except OSError:
        return []
    return data.decode("utf-8", errors="replace").replace("\x00", "").splitlines()[:HEAD_LINES]


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
    replica: str,
    lines: Sequence[str],
    *,
    exit_code: int | None,
    exit_signal: int | None,
    seen: bool = True,
    oom_killed: bool = False,
) -> Failure:
    """For an engine that ended though nobody asked it to; also with exit code 0. `seen` False: nobody
    could, for it was an earlier agent's child."""
    ended = ExitCause(code=exit_code, signal=exit_signal, oom_killed=oom_killed)
    found = diagnose(lines, ended)
    if exit_signal is not None:
        how = f"it was ended by {_name(exit_signal)}"
    elif exit_code is not None:
        how = f"it exited with code {exit_code}"
    else:
        how = UNSEEN
    if found.code == UNKNOWN:
        code = FailureCode.EXITED.value if seen else FailureCode.LOST_TRACK.value
        return Failure(code=code, detail=f"cannot run {replica}: {how}{_told(found)}")
    # Nobody saw the end: the output tells why at most, not that.
    code = found.code if seen else FailureCode.LOST_TRACK.value
    return Failure(code=code, detail=f"cannot run {replica}: {found.sentence} ({how}){_told(found)}", hint=found.hint)


#: What may be done about an engine that did not get ready, by what it was asked at last.
_LATE = {
    Miss.REFUSED: "raise start_timeout_seconds if it only loads; else its output says why it never listened",
    Miss.SILENT: "it takes connections and answers none: raise start_timeout_seconds if it only loads",
    Miss.STATUS: "the page says what it waits for; raise start_timeout_seconds if it only loads",
    Miss.UNLISTED: "it serves under another name: leave the model's name to llmgw, in extra_args and in the command",
    Miss.CHAT: "it has loaded and can't answer: its output has the error",
    Miss.BROKEN: "what listens on its port does not answer as an engine does: check the command in agent.yaml",
}


def failure_of_start(
    replica: str, lines: Sequence[str], deadline_seconds: float, probed: Probed | None = None
) -> Failure:
    """For an engine that runs but did not get ready in its time; `probed` without secrets."""
    found = diagnose(lines)
    code = FailureCode.START_TIMEOUT.value
    late = f"it was not ready within {deadline_seconds:g} s"
    hint = "raise start_timeout_seconds if it only loads"
    if probed is not None and probed.miss is not None:
        told = probed.told if len(probed.told) <= LINE_TOLD else probed.told[:LINE_TOLD] + "…"
        late += f" (the last probe: {told})"
        hint = _LATE[probed.miss]
    if found.code != UNKNOWN:
        detail = f"cannot run {replica}: {late}: {found.sentence}{_told(found)}"
        return Failure(code=code, detail=detail, hint=found.hint)
    last = last_words(lines)
    told = f"its last line: {last[:LINE_TOLD]}" if last else "it wrote nothing"
    return Failure(code=code, detail=f"cannot run {replica}: {late}; {told}", hint=hint)


def of_card(replica: str, failure: Failure, card: str, hint: str) -> Failure:
    """The same for an engine whose card went: that comes first, whatever the engine made of it."""
    rest = failure.detail.removeprefix(f"cannot run {replica}: ")
    detail = f"cannot run {replica}: {card}; then {rest}"
    return Failure(code=FailureCode.GPU_MISSING.value, detail=detail, hint=hint or failure.hint)


def failure_of_silence(replica: str, lines: Sequence[str], seconds: float, requests: int | None) -> Failure:
    """For an engine that runs, may say that it is healthy, and answers nobody."""
    inside = f" with {requests} requests in it" if requests else ""
    last = last_words(lines)
    told = f"; its last line: {last[:LINE_TOLD]}" if last else ""
    detail = f"cannot go on with {replica}: it made no token for {seconds:.0f} s{inside} and left 3 probes unanswered"
    hint = "look at its first and last lines; a hang in the driver shows in `dmesg`"
    return Failure(code=FailureCode.HUNG.value, detail=detail + told, hint=hint)


def failure_of_port(replica: str, lines: Sequence[str], port: int) -> Failure:
    """For an engine that was ready, lives, and is not to be reached any more."""
    last = last_words(lines)
    told = f"; its last line: {last[:LINE_TOLD]}" if last else ""
    detail = f"cannot go on with {replica}: it no longer listens on port {port}, while its process lives{told}"
    hint = "something told it to end, or its server ended without it: look at its last lines"
    return Failure(code=FailureCode.PORT_CLOSED.value, detail=detail, hint=hint)


def fitting(lines: Sequence[str], most_bytes: int) -> tuple[str, ...]:
    """As many of the last lines as fit into a frame's share; what is not ASCII takes six bytes there."""
    kept: list[str] = []
    for line in reversed(lines):
        told = line[:RECORD_LINE]
        most_bytes -= len(json.dumps(told)) + 1
        if most_bytes < 0:
            break
        kept.append(told)
    return tuple(reversed(kept))


def problems_told(problems: Sequence[Problem], secrets: Collection[str]) -> list[dict[str, str]]:
    """Those of a refusal as `validate --json` gives them, as many as fit; the last line counts what did not."""
    told: list[dict[str, str]] = []
    room = PROBLEMS_TOLD
    for problem in problems[:MOST_PROBLEMS]:
        text, hint = (line[:RECORD_LINE] for line in redacted([problem.text, problem.hint], secrets))
        each = {"code": problem.code, "text": text, "hint": hint}
        room -= len(json.dumps(each))
        if room < 0:
            break
        told.append(each)
    if left := len(problems) - len(told):
        told.append({"code": "more", "text": f"and {left} more", "hint": "`validate` on the node tells all of them"})
    return told


def attempt_record(
    *,
    argv: Iterable[str],
    env: Mapping[str, str],
    surroundings: Mapping[str, Any],
    head: Sequence[str],
    lines: Sequence[str],
    how: Mapping[str, Any],
) -> dict[str, Any]:
    """What stays of a failed attempt beside its sentence and tail. All of it is redacted already."""
    return {
        "argv": [word[:RECORD_LINE] for word in argv],
        "env": {name: value[:RECORD_LINE] for name, value in env.items()},
        **surroundings,
        "head": list(reversed(fitting(head[::-1], HEAD_TOLD))),
        "exception": exception_line(lines)[:RECORD_LINE],
        **how,
    }


def _told(found: Diagnosis) -> str:
    return f"; it wrote: {bare(found.line)[:LINE_TOLD]}" if found.line else ""


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _last_bytes(path: Path, most: int, until: int | None = None) -> bytes:
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            end = end if until is None else min(end, until)
            begin = max(0, end - most)
            file.seek(begin)
            return file.read(end - begin)
    except OSError:
        return b""
