"""Plain data as JSON, UTF-8 and 64-bit columns can hold it: what they can't is found before anything is stored."""

import json
import math
import re
from pathlib import Path
from typing import Any

#: Numbers beyond this don't fit a database's 64-bit columns.
MAX_INTEGER = 2**63 - 1
#: Deeper than any catalog entry or config.json, far below where Python's own recursion ends.
MOST_DEPTH = 50
#: What text must not hold: half of a surrogate pair, which UTF-8 can't say, and NUL, which PostgreSQL doesn't store.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class UnreadableJson(ValueError):
    """cannot read it as a JSON object; the text says why."""


def read_json_object(body: bytes) -> dict[str, Any]:
    """Keys and values that can be stored. Raises UnreadableJson: a key that stands there twice is none of them."""
    try:
        value = json.loads(
            body.decode(), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_without_twice
        )
    except RecursionError:
        raise UnreadableJson(_TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise UnreadableJson(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise UnreadableJson(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except ValueError as error:  # of the hooks, or a number of thousands of digits
        raise UnreadableJson(str(error).split(";", 1)[0]) from None
    if not isinstance(value, dict):
        raise UnreadableJson(f"keys and values are needed, not a {type(value).__name__}")
    if told := flaw(value):
        raise UnreadableJson(told)
    return value


def flaw(value: Any, where: str = "it", depth: int = 1) -> str:
    """What of plain data can't be stored, in a sentence; "" when all can."""
    if depth > MOST_DEPTH:
        return _TOO_DEEP
    match value:
        case str():
            return (
                f"{where} holds NUL or half of a surrogate pair, which no text may" if holds_unstorable(value) else ""
            )
        case bool():
            return ""
        case int():
            return "" if abs(value) <= MAX_INTEGER else f"{where} is a number that does not fit 64 bits"
        case float():
            return "" if math.isfinite(value) else f"{where} is not a finite number"
        case dict():
            parts = [(f"a key of {where}", key) for key in value]
            parts += [(str(key)[:80], part) for key, part in value.items()]
        case list():
            parts = [(where, part) for part in value]
        case _:
            return ""
    return next((told for name, part in parts if (told := flaw(part, name, depth + 1))), "")


def holds_unstorable(text: str) -> bool:
    return _UNSTORABLE.search(text) is not None


_TOO_DEEP = f"it is nested more than {MOST_DEPTH} deep"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"`{twice[:80]}` stands there twice")
    return found


def read_at_most(path: Path, most_bytes: int) -> bytes:
    """A whole file; of a larger one no more is read than shows that. Raises OSError, or ValueError with the bound."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return data


def printable(text: str) -> str:
    """For a terminal: what would move its cursor, rename its window or turn a line around is written as an escape.

    Names, labels and engines' words come from elsewhere.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
