"""What is wrong with given data, as data; and the reader that collects all of it instead of stopping at the first."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from agent_client.plain_data import holds_unstorable


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`code` is for programs; `field` is a path such as `profile.tensor_parallel`."""

    code: str
    field: str
    text: str
    hint: str = ""

    @property
    def sentence(self) -> str:
        """The text with its hint, for people."""
        return f"{self.text}; {self.hint}" if self.hint else self.text


_TOLD = 3  # of several problems, in one sentence for people
_MOST_TOLD = 20  # of all that is wrong with what somebody wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something is not started: all that stands against it, the most decisive first; one at least."""

    problems: tuple[Problem, ...]

    @property
    def code(self) -> str:
        return self.problems[0].code

    @property
    def detail(self) -> str:
        told, left = self.problems[:_TOLD], len(self.problems[_TOLD:])
        return "; ".join([*(problem.text for problem in told), *([f"and {left} more"] if left else [])])

    @property
    def hint(self) -> str:
        return self.problems[0].hint


class ProfileError(ValueError):
    """cannot use the data; `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        told, left = self.problems[:_MOST_TOLD], len(self.problems[_MOST_TOLD:])
        super().__init__("; ".join([*(problem.text for problem in told), *([f"and {left} more"] if left else [])]))


#: Entries of one list or mapping, unless said otherwise: far more than any engine is given, few enough to look at.
MOST_ENTRIES = 1_000
#: Unknown keys that are told one by one, each with what is near.
_TOLD_UNKNOWN = 20
#: Of one text: as long as a path may be.
_MOST_CHARACTERS = 4_096


class Fields:
    """Reads the fields of one mapping by type and notes every problem."""

    def __init__(self, data: Any, where: str, problems: list[Problem]) -> None:
        self.where = where
        self.problems = problems
        self._taken: set[str] = set()
        if isinstance(data, Mapping):
            self.data: Mapping[str, Any] = data
        else:
            self.data = {}
            self.note("not_a_mapping", "", f"cannot read {where}: keys and values are needed, not {_kind(data)}")

    def note(self, code: str, name: str, text: str, hint: str = "") -> None:
        field = f"{self.where}.{name}" if name else self.where
        self.problems.append(Problem(code=code, field=field, text=text, hint=hint))

    def raw(self, name: str) -> Any:
        self._taken.add(name)
        return self.data.get(name)

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def text(self, name: str, default: str = "", *, required: bool = False) -> str:
        value = self.raw(name)
        if value is None:
            if required:
                self.note("missing", name, f"cannot use {self.where}: `{name}` is missing")
            return default
        if not isinstance(value, str) or (required and not value.strip()) or holds_unstorable(value):
            self._wrong(name, value, "a text")
            return default
        if len(value) > _MOST_CHARACTERS:
            self._wrong(name, value, f"a text of at most {_MOST_CHARACTERS} characters")
            return default
        return value

    def integer(self, name: str, default: Any, *, least: int, most: int = 2**31 - 1) -> Any:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._wrong(name, value, f"a whole number from {least} to {most}")
            return default
        return value

    def number(
        self, name: str, default: Any, *, above: float = -math.inf, least: float = -math.inf, most: float
    ) -> Any:
        value = self.raw(name)
        if value is None:
            return default
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not (fits and above < value <= most and least <= value):
            lower = f"above {above:g}, at most" if above > -math.inf else f"from {least:g} to"
            self._wrong(name, value, f"a number {lower} {most:g}")
            return default
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._wrong(name, value, "true or false")
            return default
        return value

    def texts(self, name: str, *, single: bool = False, most: int = MOST_ENTRIES) -> tuple[str, ...]:
        """A list of texts; `single` also takes one text for a list of one."""
        value = self.raw(name)
        if value is None:
            return ()
        if single and isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple) or not all(
            isinstance(item, str) and "\x00" not in item for item in value
        ):
            self._wrong(name, value, "a list of texts")
            return ()
        return tuple(value) if self._within(name, value, most) else ()

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self._wrong(name, value, "a mapping of keys to values")
            return {}
        return value if self._within(name, value, MOST_ENTRIES) else {}

    def choice(self, name: str, allowed: Iterable[str], default: str | None = None) -> str | None:
        value = self.raw(name)
        words = list(allowed)
        if value is None and default is not None:
            return default
        if value is None:
            self.note("missing", name, f"cannot use {self.where}: `{name}` is missing", f"one of {', '.join(words)}")
            return None
        if value not in words:
            self._wrong(name, value, f"one of {', '.join(words)}")
            return default
        return str(value)

    def refuse_unknown(self) -> None:
        unknown = [name for name in self.data if name not in self._taken]
        for name in unknown[:_TOLD_UNKNOWN]:
            shown = str(name)[:80]
            near = difflib.get_close_matches(shown, self._taken, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(sorted(self._taken))}"
            self.note("unknown_field", shown, f"cannot use {self.where}: `{shown}` is not known", hint)
        if more := len(unknown[_TOLD_UNKNOWN:]):
            self.note("unknown_field", "", f"cannot use {self.where}: {more} more of its keys are not known")

    def _within(self, name: str, value: Sized, most: int) -> bool:
        if len(value) > most:
            text = f"cannot use {self.where}.{name}: it has {len(value)} entries, at most {most} are allowed"
            self.note("too_many", name, text)
        return len(value) <= most

    def _wrong(self, name: str, value: Any, needed: str) -> None:
        shown = repr(value)[:80]
        self.note("bad_value", name, f"cannot use {self.where}.{name} = {shown}: {needed} is needed")


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
