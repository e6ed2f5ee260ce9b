"""One line of an engine's output taken apart: what loggers, launchers and terminals put before the words themselves."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LONGEST = 4_000  # words that patterns look at: no cause stands later, and no pattern may take seconds
MOST_PREFIXES = 8

#: Colours, cursor movements and titles (ECMA-48 CSI and OSC), then what is left of control characters but TAB.
_TERMINAL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]"
)

_PREFIXES = (
    # who: `(Worker_TP2 pid=21932) `, Ray's `(RayWorkerWrapper pid=7, ip=10.0.0.2) `, `(raylet) `
    r"\((?:(?P<who>[A-Za-z][\w.:]{0,80}) )?pid=\d+(?:, ip=[\w.:-]{1,60})?\) |\(raylet(?:, ip=[\w.:-]{1,60})?\) ",
    # vLLM: `ERROR 12-01 06:22:26 [file.py:953] `, the older `ERROR 09-25 06:40:46 file.py:226] `
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]{5,15} (?:\[[^\]]{1,120}\]|[\w./-]{1,120}:\d+\]) ?",
    # SGLang: `[2025-07-02 07:41:58 DP0 TP0] `, `[12-11 17:52:54] `
    r"\[(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [A-Z]{2,6}\d+)*\] ",
    # llama-server: `0.00.012.008 E `
    r"\d+(?:\.\d+){3} [A-Z] ",
    # torch's hook of a rank: `[rank3]: `
    r"\[rank\d+\]: ",
    # a container's or journal's: RFC 3339 with or without CRI's `stderr F `, syslog's `Dec  1 06:13:41 host unit[7]: `
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?",
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,80} [\w./@-]{1,80}(?:\[\d+\])?: ",
    # launchers that pass lines on: `ERROR | stderr | `, compose's `vllm-1  | `, ` | `
    r"(?:[A-Z]{4,8} \| )?std(?:err|out) \| ?|(?:[\w.-]{1,80} {0,20}| {1,4})\| ",
)
#: Of one line: nothing but the same few characters again and again, as a flood or a rule drawn across a page has it.
_RUN = re.compile(r"(.{1,20}?)\1{15,}")
_ALL_RUN = re.compile(r"(.{1,20}?)\1{15,}.{0,20}")

_PREFIX = re.compile("|".join(f"(?:{pattern})" for pattern in _PREFIXES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`text` is the whole line as people should see it, `words` the part after all prefixes, indentation kept."""

    text: str
    words: str
    who: str = ""  # the process that wrote it, where it says so

    @property
    def quoted(self) -> bool:
        """A source line that a traceback quotes."""
        return self.words.startswith("    ")


def read_line(raw: str) -> Line:
    text = raw if raw.isprintable() else _TERMINAL.sub("", raw)
    words, who = text[:LONGEST], ""
    for _ in range(MOST_PREFIXES):
        match = _PREFIX.match(words)
        if match is None:
            break
        who = match["who"] or who
        words = words[match.end() :]
    return Line(text=text.strip(), words=words.rstrip(), who=who)


def collapsed(text: str) -> str:
    """The same with each long repetition told once."""
    return _RUN.sub(lambda match: f"{match[1] * 3}… (repeated)", text[:LONGEST])


def says_nothing(text: str) -> bool:
    """Whether it is one repetition from its beginning to its end, or blank."""
    return not text.strip() or _ALL_RUN.fullmatch(text.strip()[:LONGEST]) is not None


def read_lines(raw: Iterable[str]) -> Iterator[Line]:
    """A progress bar redraws its line after a carriage return: each drawing is a line of its own here."""
    for line in raw:
        if "\r" in line or "\n" in line:
            yield from (read_line(part) for part in line.splitlines())
        else:
            yield read_line(line)
