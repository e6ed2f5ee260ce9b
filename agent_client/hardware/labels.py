"""The owner's fabric labels against the adapters that are there. Fabrics come from these labels alone."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from typing import Any

#: Name of a fabric and regular expressions over whole HCA names, as agent.yaml gives them.
Fabrics = tuple[tuple[str, tuple[str, ...]], ...]
ACTIVE = ("ACTIVE", "ACTIVE_DEFER")
#: A pattern that spells out its names: plain characters and small sets such as `[0-3]`.
_LISTING = re.compile(r"(?:[A-Za-z0-9_-]|\[[0-9a-z](?:-?[0-9a-z])*\])+")
_MOST_NAMES = 64
_MOST_SHOWN = 8
_ABSENT = "check the card and its driver, or correct the label in agent.yaml"


def fabric_of(hca: str, fabrics: Fabrics) -> str | None:
    """The first label one of whose patterns matches the whole HCA name."""
    return next((name for name, patterns in fabrics if any(_matches(p, hca) for p in patterns)), None)


def missing_adapters(adapters: Sequence[Mapping[str, Any]], fabrics: Fabrics) -> list[dict[str, str]]:
    """A warning for labelled adapters that are not there or down: the label promises what the node can't do."""
    out = []
    present = [str(adapter["hca"]) for adapter in adapters]
    for fabric, patterns in fabrics:
        absent: list[str] = []
        for pattern in patterns:
            reason = _unusable(pattern)
            if reason is not None:
                text = f"fabric {fabric}: cannot use the pattern {pattern!r}: {reason}"
                out.append(_problem(text, "give a regular expression over HCA names, such as mlx5_[0-3]"))
            elif listed := names_of(pattern):
                absent += [name for name in listed if name not in present]
            elif not any(_matches(pattern, name) for name in present):
                text = f"fabric {fabric}: no adapter matches {pattern!r}; there are: {', '.join(present) or 'none'}"
                globbed = any(fnmatchcase(name, pattern) for name in present)
                meant = re.sub(r"(?<![.\])])\*", ".*", pattern)
                out.append(_problem(text, f"patterns are regular expressions: write {meant}" if globbed else _ABSENT))
        if absent:
            out.append(_problem(f"fabric {fabric}: {_are_absent(list(dict.fromkeys(absent)))}", _ABSENT))
        labelled = [adapter for adapter in adapters if any(_matches(pattern, adapter["hca"]) for pattern in patterns)]
        out += [problem for adapter in labelled if (problem := _down(fabric, adapter)) is not None]
    return out


def _are_absent(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"adapter {names[0]} is not there"
    shown, rest = names[:_MOST_SHOWN], names[_MOST_SHOWN:]
    last = f"{len(rest)} more" if rest else shown[-1]
    return f"adapters {', '.join(shown if rest else shown[:-1])} and {last} are not there"


def _down(fabric: str, adapter: Mapping[str, Any]) -> dict[str, str] | None:
    """Down: the states are known and none is active. Never one port alone: data may be on the third of twelve."""
    known = [port for port in adapter["ports"] if port["state"] is not None]
    if not known or any(port["state"] in ACTIVE for port in adapter["ports"]):
        return None
    states = "; ".join(
        f"port {port['port']}: {port['state']}" + (f", {port['phys_state']}" if port["phys_state"] else "")
        for port in known
    )
    return _problem(f"fabric {fabric}: adapter {adapter['hca']} is down ({states})", "check the cable and the far end")


def names_of(pattern: str) -> tuple[str, ...]:
    """The names that a pattern such as `mlx5_[0-3]` spells out; none when it is open (`mlx5_.*`, `mlx5_[0-9]`)."""
    if not _LISTING.fullmatch(pattern):
        return ()
    choices: list[Iterable[str]] = []
    count = 1
    for part in re.findall(r"\[[^\]]*\]|.", pattern):
        members = _members(part[1:-1]) if part.startswith("[") else part
        if not members or set(members) >= set("0123456789"):
            return ()  # every digit: "whatever there is", not a list
        count *= len(members)
        if count > _MOST_NAMES:
            return ()
        choices.append(members)
    return tuple("".join(name) for name in product(*choices))


def _members(inside: str) -> str:
    out = ""
    for low, high in re.findall(r"([0-9a-z])(?:-([0-9a-z]))?", inside):
        out += "".join(chr(code) for code in range(ord(low), ord(high or low) + 1))
    return "".join(dict.fromkeys(out))


def _matches(pattern: str, hca: str) -> bool:
    return _unusable(pattern) is None and re.fullmatch(pattern, hca) is not None


@cache
def _unusable(pattern: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # Python means to read it otherwise one day: so do people
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError, FutureWarning) as error:
        return str(error)
    return None


def _problem(text: str, hint: str) -> dict[str, str]:
    return {"code": "missing_adapter", "severity": "warning", "text": text, "hint": hint}
