"""GPUs by NVML, asked in a process of its own: a sick driver may hang a call for ever, or take the process with it.

The child says each step (nvml_reader.py). When it falls silent, the card that it was at is known: that one is left out
and a next child asks for the others, so that one sick card hides no other.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_client.hardware import program
from agent_client.hardware.cards import Found
from agent_client.hardware.nvidia_failures import nvml_sentence
from agent_client.hardware.nvidia_smi import host_memory
from agent_client.hardware.nvml_records import Record, assemble

READER = Path(__file__).with_name("nvml_reader.py")
#: A card that hung is touched again after this long: each try may leave a process behind that can't be killed.
RETRY_SECONDS = 600.0
#: Cards of one look that may hang, each for a whole deadline; and children in all, since one that dies costs little.
_MOST_HANGS = 3
_MOST_CHILDREN = 12
_NO_LIBRARY = 12
#: What a card keeps while it does not answer: its engines are still there, and its class must not change.
_LASTING = ("uuid", "bus", "name", "memory_total_mib", "compute_capability", "mig_mode", "migs")
_OF_INSTANCES = ("device", "uuid", "name", "gi", "ci", "sms", "memory_total_mib")
_UNREACHED = "the driver was not asked about this card: it hung or died too often at others"


@dataclass(slots=True, kw_only=True)
class _Told:
    """What the children of one look said."""

    head: Record = field(default_factory=dict)
    cards: dict[int, Record] = field(default_factory=dict)
    begun: int | None = None  # a card that was touched and has not answered
    ended: bool = False
    failed: Record | None = None

    def take(self, text: str) -> None:
        self.begun = None
        for line in text.splitlines():
            record = _record(line)
            match record.get("kind"), record.get("index"):
                case "head", _ if isinstance(record.get("count"), int):
                    self.head = record
                case "begin", int(index):
                    self.begun = index
                case "identity" | "card" as kind, int(index):
                    self.cards[index] = record
                    self.begun = index if kind == "identity" else None
                case "failed", _:
                    self.failed = record
                case "end", _:
                    self.ended = True

    def answered(self) -> set[int]:
        return {index for index, card in self.cards.items() if card["kind"] == "card"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silence:
    """A card at which a child fell silent."""

    at: float
    child: str  # the name of its run
    text: str


class Nvml:
    """Remembers which cards hang. Not for two threads at once."""

    def __init__(self, argv: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._argv = tuple(argv) or (sys.executable, "-P", str(READER))
        self._clock = clock
        self._silent: dict[int, _Silence] = {}
        self._known: dict[int, Record] = {}  # what lasts of each card's last answer

    def read(self, *, deadline_seconds: float = program.DEADLINE_SECONDS) -> Found:
        """Never raises. Source `none` without the library; `unavailable` with the reason when NVML does not answer."""
        now = self._clock()
        self._silent = {
            index: silence
            for index, silence in self._silent.items()
            if now - silence.at < RETRY_SECONDS or program.is_stuck(silence.child)
        }
        told = _Told()
        trouble = nvml_sentence(0, "it says nothing")
        hangs, deaths = 0, set[int | None]()
        for _ in range(_MOST_CHILDREN):
            child = f"nvml without {sorted(self._silent)}"
            skip = ",".join(map(str, sorted({*self._silent, *told.answered()})))
            output = program.run([*self._argv, "--skip", skip], deadline_seconds=deadline_seconds, name=child)
            told.take(output.output)
            if told.ended or told.failed is not None:
                break
            trouble = nvml_sentence(None if output.code is None else 0, output.complaint)
            if output.code is None:
                hangs += 1
                why = f"the driver hangs at this card: {output.complaint}"
            elif told.begun in deaths:
                why = f"the driver's library crashes at this card ({_end_of(output.code)})"
            else:  # once may be by chance: killed by hand, or for want of memory
                deaths.add(told.begun)
                continue
            if told.begun is None:
                break
            text = f"{why}; it is left alone for {RETRY_SECONDS / 60:.0f} minutes"
            self._silent[told.begun] = _Silence(at=self._clock(), child=child, text=text)
            if hangs == _MOST_HANGS:
                break
        return self._found(told, trouble)

    def _found(self, told: _Told, trouble: str) -> Found:
        if told.failed is not None and not told.cards:
            if told.failed.get("code") == _NO_LIBRARY:
                return Found(source="none")
            error = nvml_sentence(told.failed.get("code"), str(told.failed.get("error")))
            return Found(source="unavailable", error=error)
        if not told.head:
            return Found(source="unavailable", error=trouble)
        answered = told.answered()
        present = {told.cards[index].get("uuid") for index in answered}
        records = []
        for index in range(told.head["count"]):
            card = told.cards.get(index, {})
            if index not in answered:
                silence = self._silent.get(index)
                card = {**card, "fault": "not_answering", "fault_text": silence.text if silence else _UNREACHED}
            records.append({**self._completed(index, card, present), "index": index})
        return assemble(records, driver=told.head.get("driver"), cuda=told.head.get("cuda"), host=host_memory())

    def _completed(self, index: int, card: Record, present: set[Any]) -> Record:
        """A sick card with what is known of it, unless its place in NVML's order has gone to another one."""
        if card.get("fault") is None:
            self._known[index] = {**{name: card.get(name) for name in _LASTING}, "migs": _lasting_instances(card)}
            return card
        known = self._known.get(index, {})
        same = known.get("uuid") == card["uuid"] if card.get("uuid") else known.get("uuid") not in present
        if not same:
            return card
        return {**card, **{name: value for name, value in known.items() if card.get(name) is None}}


def read(*, deadline_seconds: float = program.DEADLINE_SECONDS) -> Found:
    """A single look."""
    return Nvml().read(deadline_seconds=deadline_seconds)


def _record(line: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        return {}  # cut off in the middle, or a library that prints
    return record if isinstance(record, Mapping) else {}


def _lasting_instances(card: Record) -> list[Record] | None:
    migs = card.get("migs")
    return None if migs is None else [{name: each.get(name) for name in _OF_INSTANCES} for each in migs]


def _end_of(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
