"""From an engine's last words to one sentence. Pure: lines and the way it ended → code, the line that matters, a hint.

The cause comes first and the noise after it: a failed worker makes its parents fail, each with a louder message. So the
*earliest* line of the best rank counts, source lines quoted in tracebacks are passed over, and only where no row of the
table fits does the first exception of a worker speak, then any exception, then the last line. What an engine wrote
before it last served well is looked at only when nothing after that tells.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_client.engines.causes import CAUSES, Cause
from agent_client.engines.lines import Line, collapsed, read_line, read_lines, says_nothing

UNKNOWN = "unknown"
NEAR_LINES = 60
LAST_LINES = 200  # among which the last one that says something is looked for
#: Ranks: 1 names the cause, 2 is a consequence that still tells, 3 says only who died.
CAUSE, CONSEQUENCE, LAST_RESORT = 1, 2, 3

_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]{0,120}\.)?[A-Z]\w{0,80}(?:Error|Exception|Interrupt)\b(?::|$)")
_VALUE_ERROR = re.compile(r"^ +Value error, ")  # pydantic's message stands below the exception's name
_AFTERMATH = re.compile(
    r"Engine core initialization failed|EngineDeadError|See (?:root cause|stack trace)|CancelledError"
    r"|ValidationError: \d|ActorDiedError|WorkerCrashedError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt"
)
#: Lines that an engine writes only while it serves.
_SERVED = re.compile(r"Avg (?:prompt|generation) throughput: |^Decode batch[.,]|\"POST /\S{1,200} HTTP/[\d.]+\" 200\b")

#: Its end had neither code nor signal: only a parent gets those.
UNSEEN = "it ended, and how is not known: an earlier agent had started it"
_BY_SIGNAL = {
    4: ("illegal-instruction", "it uses instructions that this CPU does not have", "install a build for this CPU"),
    6: ("aborted", "it gave up by itself (SIGABRT)", "look at the lines before its end"),
    7: (
        "bus-error",
        "a mapped file or /dev/shm was cut short (SIGBUS)",
        "check the model's files and the space in /dev/shm",
    ),
    9: (
        "killed",
        "it was killed from outside (SIGKILL)",
        "look at `dmesg` for the OOM killer, and at who else may have",
    ),
    11: ("segfault", "it crashed (segmentation fault)", "try another version of the engine"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    """How a process ended: one of code and signal, or neither when nobody saw it."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False  # the kernel says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`sentence` follows "cannot run X: ". `line` is the output's, without colours; "" when no line matters."""

    code: str
    line: str
    sentence: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hit:
    cause: Cause
    line: Line
    groups: dict[str, str]

    def diagnosis(self) -> Diagnosis:
        says, hint = _fill(self.cause.says, self.groups), _fill(self.cause.hint, self.groups)
        return Diagnosis(code=self.cause.code, line=self.line.text, sentence=says, hint=hint)


def diagnose(lines: Sequence[str], exit_cause: ExitCause | None = None) -> Diagnosis:
    """What made an engine fail. Lines in the order they were written; one pass, some 20 µs a line. Never raises."""
    ended = exit_cause or ExitCause()
    read = tuple(read_lines(lines))
    if ended.oom_killed:
        hint = "free memory on the node, or use one that has more"
        sentence = "the kernel killed it because memory ran out"
        return Diagnosis(code="killed-oom", line=_killed_line(read), sentence=sentence, hint=hint)
    hit = _since_it_served(read)
    if hit is not None and hit.cause.rank < LAST_RESORT:
        return hit.diagnosis()
    exception = _exception(read)
    if ended.signal in _BY_SIGNAL:
        code, sentence, hint = _BY_SIGNAL[ended.signal]
        return Diagnosis(code=code, line=exception or _last(read), sentence=sentence, hint=hint)
    if hit is not None and not exception:
        return hit.diagnosis()
    line = exception or _last(read)
    return Diagnosis(code=UNKNOWN, line=line, sentence=bare(line)[:300] or _how(ended))


def exception_line(lines: Sequence[str]) -> str:
    """A worker's first exception, else anybody's first that is no mere consequence, else the last line."""
    read = tuple(read_lines(lines))
    return _exception(read) or _last(read)


def bare(line: str) -> str:
    """A line without the prefix that the engine's logger gave it, and each long repetition told once."""
    return collapsed(read_line(line).words.strip())


def last_words(lines: Sequence[str]) -> str:
    """The last line that says something, as `bare` tells it; "" where nothing was written."""
    return bare(_last(tuple(read_lines(lines[-LAST_LINES:]))))


def _since_it_served(lines: Sequence[Line]) -> _Hit | None:
    served = next((n + 1 for n in range(len(lines) - 1, -1, -1) if _SERVED.search(lines[n].words)), 0)
    late = _best(lines[served:])
    if served and (late is None or late.cause.rank == LAST_RESORT):
        return _best(lines[:served]) or late
    return late


def _best(lines: Sequence[Line]) -> _Hit | None:
    best: _Hit | None = None
    for number, line in enumerate(lines):
        for cause in CAUSES:
            if cause.source is not line.quoted or (best is not None and best.cause.rank <= cause.rank):
                continue
            match = cause.pattern.search(line.words)
            if match is None or not _near(cause, lines, number):
                continue
            best = _Hit(cause=cause, line=line, groups={k: v or "?" for k, v in match.groupdict().items()})
            if cause.rank == CAUSE:
                return best
    return best


def _near(cause: Cause, lines: Sequence[Line], number: int) -> bool:
    return not cause.near or any(cause.near in line.text for line in lines[max(0, number - NEAR_LINES) : number])


def _exception(lines: Sequence[Line]) -> str:
    first = ""
    for line in lines:
        if not _EXCEPTION.match(line.words) and not _VALUE_ERROR.match(line.words):
            continue
        if _AFTERMATH.search(line.words):
            continue
        if line.who and line.who != "APIServer":
            return line.text
        first = first or line.text
    return first


def _last(lines: Sequence[Line]) -> str:
    """One that says something, if there is any near the end."""
    telling = (line.text for line in reversed(lines[-LAST_LINES:]) if not says_nothing(line.words))
    return next(telling, "") or next((line.text for line in reversed(lines) if line.text), "")


def _fill(text: str, groups: dict[str, str]) -> str:
    """The named groups in place of their names; other braces (YAML in hints) stay."""
    for name, value in groups.items():
        text = text.replace("{" + name + "}", value.strip()[:300])
    return text


def _killed_line(lines: Sequence[Line]) -> str:
    row = next(row for row in CAUSES if row.code == "killed-oom")
    return next((line.text for line in lines if row.pattern.search(line.words)), "")


def _how(ended: ExitCause) -> str:
    if ended.signal is not None:
        return f"it was ended by signal {ended.signal}"
    return UNSEEN if ended.code is None else f"it exited with code {ended.code}"
