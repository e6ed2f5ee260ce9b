"""One cell of nvidia-smi's output → a value, or None for everything that is no value. Never 0 for "not known"."""

import re
from collections.abc import Iterable

#: Lower case, without brackets; all were seen in captures or stand in NVML's list of errors.
_NO_VALUE = frozenset(
    {"", "n/a", "not supported", "unknown", "unknown error", "insufficient permissions", "gpu is lost"}
    | {"gpu requires reset", "err!", "requested functionality has been deprecated", "not found", "not available"}
)
_NUMBER = re.compile(r"[0-9]{1,15}\Z")
_MIB = re.compile(r"([0-9]{1,15})(?: MiB)?\Z")
_BUS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\Z")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}\Z")
#: 2^64-1 bytes is the driver's "not available"; nothing real comes near this.
_TOO_MANY_MIB = 1 << 40
_LONGEST = 200


def known(text: str | None) -> str | None:
    if text is None or _bare(text) in _NO_VALUE or fault(text):
        return None
    return text.strip()[:_LONGEST]


def integer(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.match(text := text.strip()) else None


def mib(text: str | None) -> int | None:
    """`81559 MiB`, or the bare number of `nounits`."""
    match = _MIB.match(text.strip()) if text is not None else None
    value = int(match.group(1)) if match else None
    return value if value is not None and value < _TOO_MANY_MIB else None


def yes(text: str | None) -> bool | None:
    return {"yes": True, "no": False}.get(_bare(text or ""))


def uuid(text: str | None) -> str | None:
    """What an engine can be given: anything else could name another card."""
    return text if text is not None and _UUID.match(text := text.strip()) else None


def bus(text: str | None) -> str | None:
    """The spelling of sysfs: lower case, four digits of domain (more only where the domain needs them)."""
    match = _BUS.match(text.strip().lower()) if text is not None else None
    return f"{int(match.group(1), 16):04x}:{match.group(2)}" if match else None


def process_name(text: str | None) -> str | None:
    """The program alone: arguments may carry keys."""
    name = known(text)
    return name.split(None, 1)[0] if name else None


def fault(text: str | None) -> str | None:
    """The problem code that a cell tells about its card."""
    bare = _bare(text or "")
    if bare.startswith("gpu is lost"):
        return "lost"
    return "reset_required" if bare.startswith("gpu requires reset") else None


def identity_fault(texts: Iterable[str | None]) -> str | None:
    """The same for cells that a healthy card always fills, where an error means more than "not supported"."""
    found = None
    for text in texts:
        bare = _bare(text or "")
        if fault(text):
            return fault(text)
        if bare == "insufficient permissions":
            found = "no_permission"
        elif bare in ("unknown error", "err!"):
            found = found or "not_answering"
    return found


def total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _bare(text: str) -> str:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    return text.strip().lower()
