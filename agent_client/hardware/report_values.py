"""Careful reading of a tool's JSON: a word in place of a number is an absent number. Pure."""

import json
import re
from collections.abc import Callable
from typing import Any

#: Both tools say "MB" and mean MiB.
_MIB = {"B": 2**-20, "KB": 2**-10, "KIB": 2**-10, "MB": 1, "MIB": 1, "GB": 2**10, "GIB": 2**10}
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NO_TEXT = ("", "n/a", "na", "none", "unknown", "not supported")
_MOST_MIB = 2**31 - 1
#: Warnings may come before the report: tried as its start are this many lines that look like one.
_MOST_STARTS = 64


def find(text: str, wanted: Callable[[Any], bool]) -> Any:
    """The first JSON value of the wanted kind; it starts the text or, after warnings, a line. Not an indented one,
    which would be a part of a report that was cut off."""
    decoder = json.JSONDecoder()
    starts = [match.start(1) for match in re.finditer(r"(?:\A[\s\ufeff]*|^)([\[{])", text, re.MULTILINE)]
    for start in starts[:_MOST_STARTS]:
        try:
            data, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if wanted(data):
            return data
    return None


def size_mib(value: Any) -> int | None:
    """`{"value": 196592, "unit": "MB"}`, a number of MiB, or no size."""
    unit = value.get("unit", "MB") if isinstance(value, dict) else "MB"
    figure = number(value)
    return None if figure is None or not isinstance(unit, str) else mib(figure, unit.upper())


def mib(figure: float, unit: str) -> int | None:
    if unit not in _MIB:
        return None
    size = figure * _MIB[unit]
    return int(size) if size <= _MOST_MIB else None


def number(value: Any) -> float | None:
    """A finite number from 0 on: as such, as text, or under "value"."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,6})?", value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 2**63 else None  # also false for NaN


def whole(value: Any, most: int = 2**53) -> int | None:
    figure = number(value)
    return int(figure) if figure is not None and figure.is_integer() and figure <= most else None


def word(value: Any) -> str | None:
    """Text that says something, on one line and of a bounded length."""
    if not isinstance(value, str):
        return None
    text = " ".join("".join(char if char.isprintable() else " " for char in value[:400]).split())[:200]
    return None if text.strip("[]").lower() in _NO_TEXT else text


def address(value: Any) -> str | None:
    """sysfs spelling: lower case, 4-digit domain where it fits."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if not _BUS.fullmatch(text):
        return None
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def serial(value: Any) -> str | None:
    """16 hexadecimal digits; zero is what a card without one says."""
    match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{1,16})", value.strip()) if isinstance(value, str) else None
    if match is None or not match[1].strip("0") or not (match[0][:2].lower() == "0x" or len(match[1]) == 16):
        return None
    return match[1].lower().zfill(16)
