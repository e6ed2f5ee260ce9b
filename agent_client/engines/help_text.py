"""What an installed engine's own --help says: the options that it knows, and the words of a command that it does not.

Guides name options that are long gone, and an upgrade removes some: the program that is there has the last word.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent_client.engines.options import canonical, table
from agent_client.profile import EngineKind, Problem
from agent_client.profile.choices import CHOICES

FEWEST = 5  # less is no help text: an error, or a program of another kind
_OPTION_LINE = re.compile(r" {0,8}(-.*)\Z")
_NAME = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_MOST_NEAR = 3

#: What an engine makes options of before its parser looks: vLLM's `-O3` is --optimization-level 3.
_SHORTHAND = {EngineKind.VLLM: "-O"}
#: The list of options that comes with the agent, and the version that it was read from.
_TABLES = {EngineKind.VLLM: "vllm", EngineKind.SGLANG: "sglang"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Of one installed engine. `names` None: it could not be asked, so nothing is refused by it."""

    engine: EngineKind
    version: str = ""
    names: frozenset[str] | None = None
    abbreviations: bool = True  # it takes unique prefixes, as argparse does
    underscores: bool = True  # it takes `_` for `-`

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The version to compare by; None where it is not known."""
        return version_numbers(self.version)

    def knows(self, word: str) -> bool:
        """Whether it would take one word that begins with a dash. What can't be told counts as known."""
        if self.names is None:
            return True
        name = word.split("=", 1)[0]
        if self.underscores:
            name = canonical(name)
        if self.abbreviations:
            name = name.split(".", 1)[0]  # vLLM's --config.key
        if name in self.names:
            return True
        if not self.abbreviations:
            return False
        if name.startswith("--"):
            return any(known.startswith(name) for known in self.names)
        return name[:2] in self.names or name[:2] == _SHORTHAND.get(self.engine)  # `-n2` for `-n 2`


def version_numbers(version: str) -> tuple[int, ...] | None:
    """`0.32.0+cpu` → (0, 32, 0)."""
    found = _VERSION.search(version)
    return tuple(int(part[:9]) for part in found[0].split(".")) if found else None


def option_names(text: str) -> frozenset[str] | None:
    """Names at the beginnings of the lines of a help text; None when there are too few to be one."""
    names: set[str] = set()
    for line in text.splitlines():
        if match := _OPTION_LINE.match(line):
            names.update(canonical(name) for name in _NAME.findall(match[1]))
    return frozenset(names) if len(names) >= FEWEST else None


def listed(engine: EngineKind, version: str) -> frozenset[str] | None:
    """The options of the list that comes with the agent, if it is of this version."""
    program, choices, numbers = _TABLES.get(engine), CHOICES.get(engine), version_numbers(version)
    if program is None or choices is None or numbers is None or numbers[: len(choices.version)] != choices.version:
        return None
    return frozenset(table(program).by_name)


def unknown_flags(words: Iterable[str], known: Known, *, set_by_user: bool) -> Iterator[Problem]:
    """Refused by name, with the nearest that there is."""
    which = f"{known.engine} {known.version}".strip()
    for word in words:
        if not word.startswith("-") or (word.isprintable() and (not _NAME.match(word) or known.knows(word))):
            continue
        if not word.isprintable():
            text = f"cannot use {word[:80]!a} in extra_args: no option is written so"
            yield Problem(code="flag_unknown", field="profile.extra_args", text=text, hint="leave it out")
            continue
        name = word.split("=", 1)[0]
        near = difflib.get_close_matches(canonical(name), sorted(known.names or ()), n=_MOST_NEAR)
        if set_by_user:
            text = f"cannot use {name} in extra_args: the {which} of this node has no such option"
            hint = f"did you mean {' or '.join(near)}?" if near else "leave it out"
        else:
            text = f"cannot use the {which} of this node: it has no option {name}, which this profile needs"
            hint = "install a newer version, or leave out what needs it"
        yield Problem(code="flag_unknown", field="profile.extra_args", text=text, hint=hint)
