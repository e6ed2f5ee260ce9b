"""What a failed nvidia-smi run means, judged by its text and its exit code together. Pure.

Exit codes are NVML's [manual]; messages come on stdout, and some failures end with 0 or with a code for "other".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent_client.hardware import readings
from agent_client.hardware.cards import Gpu, Seen, build


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    code: str
    cause: str
    hint: str
    final: bool = True  # asking in another way would give the same answer


_FAILURES: Mapping[str, tuple[str, str]] = {
    "mismatch": (
        "the loaded driver and its library are of different versions",
        "the driver was updated while it was in use: reboot, or unload and load the nvidia modules",
    ),
    "driver_not_loaded": (
        "the NVIDIA driver does not answer",
        "load it (modprobe nvidia), and look into dmesg if that fails",
    ),
    "no_library": ("libnvidia-ml is not found", "install the driver's user-space part of the same version"),
    "no_permission": ("this user may not read the devices", "let the agent's user read and write /dev/nvidia*"),
    "no_devices": ("the driver sees no card", "check lspci | grep -i nvidia, and which cards the container was given"),
    "lost": ("a card is lost", "reboot; if it comes back, reseat or replace the card"),
    "not_answering": ("a card does not answer", "look for Xid in dmesg; reset the card or reboot"),
    "reset_required": ("a card needs a reset", "nvidia-smi --gpu-reset, or reboot"),
    "field_invalid": ("this driver does not know a field that was asked for", "update the driver"),
    "endless": ("it is no nvidia-smi", "name NVIDIA's own program with --nvidia-smi"),
    "crashed": ("it crashed", "run it by hand, and look into dmesg"),
    "hanging": ("the driver hangs", "look for Xid 119 or 45 in dmesg; the driver may need a reboot"),
    "not_run": ("the program can't be run", "give its path with --nvidia-smi, or install the driver"),
    "unknown_error": (
        "the driver answers with an unknown error",
        "in a container, start it anew (after systemctl daemon-reload devices get lost); else look into dmesg",
    ),
    "other": ("the answer is not understood", "run it by hand"),
}
#: Text goes before code: "other" (255) hides many. First match wins.
_BY_TEXT = (
    ("mismatch", r"driver/library version mismatch"),
    ("driver_not_loaded", r"couldn't communicate with the nvidia driver|driver not loaded"),
    ("no_library", r"couldn't find libnvidia-ml|library not found"),
    ("field_invalid", r"is not a valid field to query"),
    ("lost", r"gpu is lost"),
    ("reset_required", r"gpu requires reset"),
    ("not_answering", r"unable to determine the device handle"),
    ("no_permission", r"insufficient permissions"),
    ("no_devices", r"no devices were found"),
    ("unknown_error", r"failed to initialize nvml: unknown error"),
)
_BY_CODE = {
    2: "field_invalid",
    4: "no_permission",
    6: "no_devices",
    9: "driver_not_loaded",
    12: "no_library",
    15: "lost",
    16: "reset_required",
    18: "mismatch",
}
_BY_NVML = {code: _BY_CODE[code] for code in (4, 6, 9, 15, 16, 18)} | {999: "unknown_error"}
_MOST_QUOTED = 200
_NOT_FINAL = frozenset({"field_invalid", "lost", "not_answering", "reset_required", "other"})
_HANDLE = re.compile(
    r"unable to determine the device handle for gpu\s*(?:([0-9]{1,3}): )?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
    r":?\s*([^\n]*)",
    re.IGNORECASE,
)


def classify(code: int | None, text: str) -> Failure:
    """`code` None: no answer in time."""
    lower = text.lower()
    if code is None:
        kind = "endless" if "printed more than" in lower else "hanging"
    elif code < 0:
        kind = "crashed"
    else:
        kind = next((kind for kind, pattern in _BY_TEXT if re.search(pattern, lower)), None) or (
            "not_run" if code in (126, 127) else _BY_CODE.get(code, "other")
        )
    cause, hint = _FAILURES[kind]
    return Failure(code=kind, cause=cause, hint=hint, final=kind not in _NOT_FINAL)


def sentence(program: str, code: int | None, text: str) -> str:
    """For people: what could not be done, why, what the program said, what to do."""
    failure = classify(code, text)
    if code is None:
        how = _quotable(text)  # the runner's own words
    else:
        said = f'"{_quotable(text)}", ' if _quotable(text) else ("no text, " if text.strip() else "")
        how = said + (f"signal {-code}" if code < 0 else f"exit code {code}")
    return f"cannot read GPUs from {program}: {failure.cause} ({how}); {failure.hint}"


def _quotable(text: str) -> str:
    """The beginning, printable; nothing of what is mostly no text."""
    start = " ".join(text.split())[:_MOST_QUOTED]
    shown = "".join(char for char in start if char.isprintable() and char != "\N{REPLACEMENT CHARACTER}")
    return shown if 10 * len(shown) >= 9 * len(start) else ""


def nvml_sentence(error: int | None, text: str) -> str:
    """The same of NVML. `error` None: no answer in time."""
    kind = "hanging" if error is None else _BY_NVML.get(error)
    if kind is None:
        return f"cannot read GPUs from NVML: {text}"
    cause, hint = _FAILURES[kind]
    return f"cannot read GPUs from NVML: {cause} ({text}); {hint}"


def unreadable_cards(text: str) -> list[Gpu]:
    """Cards that the text names by their place on the bus, because no more is known of them."""
    found: dict[str, Gpu] = {}
    for match in _HANDLE.finditer(text):
        bus = readings.bus(match.group(2))
        if bus is None:
            continue
        fault = readings.identity_fault((match.group(3),)) or "not_answering"
        found[bus] = build(Seen(index=readings.integer(match.group(1)), bus=bus, fault=fault))
    return list(found.values())
