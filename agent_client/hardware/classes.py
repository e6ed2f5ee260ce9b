"""`gpu_class(name, memory) → h100-sxm-80gb`: one stable word for a kind of card, by rule, so that new names work too.

Model words, then the form (sxm, pcie, nvl, oam), then the size; ECC, driver and board details never change it.
"""

import math
import re
import unicodedata
from collections.abc import Iterable

#: In front of the model and saying nothing about it. Quadro, GRID and TITAN tell cards apart and stay.
_VENDORS = frozenset({"nvidia", "corporation", "tesla", "geforce", "amd", "instinct"})
_NOISE = frozenset({"gpu", "with", "design", "generation", "edition"})
_FORMS = {"pcie": "pcie", "fhhl": "pcie", "active": "pcie", "nvl": "nvl", "oam": "oam"}
_SXM = re.compile(r"sxm\d*")
#: Sold as modules only, so the name does not say it.
_MODULES = re.compile(r"h20|h200|h800|b\d00|gb\d00|l20x")
#: CPU and GPU in one package: a size in the name is the CPU's unless HBM follows.
_SUPERCHIPS = re.compile(r"g[hb]\d00")
_HBM = re.compile(r"hbm\d*e?")
_STACKED = re.compile(r"p100|g?v100s?|a100x?|a800|a30x?|h\d+[a-z]*|gh\d00|mi\d+[a-z]*")
_INSTINCT = re.compile(r"mi(\d+)([a-z]*)")
_UNIFIED = re.compile(r"gb1\d|thor|orin|xavier")
_SIZE = re.compile(r"(\d{1,4})gb?")
_VGPU = re.compile(r"-(?:\d+-)?(\d{1,3})[abcq](?:\d|me)?\Z")
_MIG = re.compile(r"\bmig\b\s*(\S*)")
#: Sizes in GiB that cards with GDDR are sold with. Neighbours are more than 16/15 apart: ECC takes one sixteenth.
_USUAL = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 22, 24, 32, 40, 48, 64, 72, 80, 96)
#: Models with one size, for when the memory is not told or is only a slice's. Keys are the class without the size.
_ONE_SIZE = {
    **{"t4": 16, "t4g": 16, "a2": 16, "a10": 24, "a10g": 24, "a30": 24, "a40": 48},
    **{"l4": 24, "l20": 48, "l40": 48, "l40s": 48, "h100-pcie": 80, "h100-nvl": 94},
    **{"h200-sxm": 141, "h200-nvl": 141, "gh200": 96, "l20x-sxm": 141, "h800-sxm": 80, "h800-pcie": 80, "h800-nvl": 94},
    **{"b200-sxm": 180, "b300-sxm": 269, "gb200-sxm": 186, "gb300-sxm": 278},
    **{f"rtx-pro-6000-blackwell-{edition}": 96 for edition in ("server", "workstation", "maxq")},
}
_MIB_PER_GIB = 1024
_LONGEST = 100  # what the control plane stores


def gpu_class(
    name: str,
    memory_total_mib: int | None,
    *,
    mig_profile: str | None = None,
    overrides: Iterable[tuple[str, str]] = (),
) -> str:
    """The class of a card or of one of its MIG slices; never raises, whatever the name.

    `memory_total_mib` is the card's, except for a name with "MIG 1g.10gb" in it (a MIG handle of NVML): there it is
    the slice's and says nothing about the card. `overrides`: the owner's (regular expression over the whole name,
    class); the first that matches wins.
    """
    text = _plain(name)
    if mig := _MIG.search(text):
        text, memory_total_mib = text[: mig.start()], None
        mig_profile = mig_profile or mig.group(1)
    found = _overridden(name, overrides) or _card(text, memory_total_mib)
    if mig_profile is not None:
        profile = re.sub(r"[^a-z0-9.+-]", "", mig_profile.lower()).strip(".-")
        found = f"{found}-mig-{profile}" if profile else f"{found}-mig"
    return found[:_LONGEST].strip("-.")


def is_unified(name: str) -> bool:
    """GPU and CPU share one memory, so the driver reports none for the GPU (GB10, Jetson)."""
    return any(_UNIFIED.fullmatch(word) for word in _words(_plain(name)))


def size_gb(memory_mib: int, *, stacked: bool) -> int:
    """The size a card is called by: HBM in GiB rounded up; else the smallest usual size that holds it."""
    gib = memory_mib / _MIB_PER_GIB
    if stacked or gib > _USUAL[-1]:
        return math.ceil(gib)
    return next(size for size in _USUAL if size >= gib)


def _plain(name: str) -> str:
    ascii_text = unicodedata.normalize("NFKD", name[:200]).encode("ascii", "ignore").decode().lower()
    return re.sub(r"\((?:tm|r|c)\)", " ", ascii_text).replace("max-q", "maxq").strip()


def _words(text: str) -> list[str]:
    words = [word.strip(".") for word in re.findall(r"[a-z0-9.]+", text)]
    words = [word for word in words if word and word not in _NOISE]
    while words and (words[0] in _VENDORS or words[:2] == ["radeon", "rx"]):
        del words[0]
    if "maxq" in words:  # half the power, whichever edition
        words = [word for word in words if word != "workstation"]
    return words


def _overridden(name: str, overrides: Iterable[tuple[str, str]]) -> str | None:
    for pattern, wanted in overrides:
        try:
            if re.fullmatch(pattern, name, re.IGNORECASE):
                return re.sub(r"[^a-z0-9.-]+", "-", wanted.lower()).strip("-.") or None
        except re.error:  # a bad pattern is told where the configuration is read
            continue
    return None


def _card(text: str, memory_mib: int | None) -> str:
    words = _words(text)
    if not words:
        return "unknown"
    if memory_mib is not None and memory_mib <= 0:
        memory_mib = None
    if unified := next((word for word in words if _UNIFIED.fullmatch(word)), None):
        return f"{unified}-unified"
    if vgpu := _VGPU.search(text):
        prefix = [] if words[0] == "grid" else ["vgpu"]
        return "-".join([*prefix, *words, f"{int(vgpu.group(1)) or 0.5}gb"])
    form = _form(words)
    stem = "-".join([*_model(words, form), *([form] if form else [])])
    stacked = form in ("sxm", "nvl", "oam") or _STACKED.fullmatch(words[0]) is not None
    size = _named_size(words, memory_mib)
    if size is None:
        size = size_gb(memory_mib, stacked=stacked) if memory_mib is not None else _ONE_SIZE.get(stem)
    return stem if size is None else f"{stem}-{size}gb"


def _form(words: list[str]) -> str | None:
    for word in words[1:]:
        if _SXM.fullmatch(word):
            return "sxm"
        if word in _FORMS:
            return _FORMS[word]
    if instinct := _INSTINCT.fullmatch(words[0]):
        number, suffix = int(instinct.group(1)), instinct.group(2)
        if suffix == "a":  # an APU in a socket
            return None
        return "oam" if number >= 250 and suffix != "p" else "pcie"
    if re.fullmatch(r"gh\d00", words[0]):
        return None
    if _MODULES.fullmatch(words[0]) or any(_HBM.fullmatch(word) for word in words[1:]):
        return "sxm"
    return None


def _model(words: list[str], form: str | None) -> list[str]:
    """The words that name the model. Where a form is known, what follows it or the size is board detail (-LS, AC)."""
    if form and (_MODULES.fullmatch(words[0]) or _INSTINCT.fullmatch(words[0])):
        return words[:1]
    detail = [index for index, word in enumerate(words) if index and _is_detail(word)]
    if form and detail:
        return words[: detail[0]]
    return [word for index, word in enumerate(words) if index not in detail]


def _is_detail(word: str) -> bool:
    return bool(word in _FORMS or _SXM.fullmatch(word) or _HBM.fullmatch(word) or _SIZE.fullmatch(word))


def _named_size(words: list[str], memory_mib: int | None) -> int | None:
    """The size in the name, if it is the GPU's: near what the driver reports (less ECC and reserve)."""
    for index, word in enumerate(words[1:], start=1):
        match = _SIZE.fullmatch(word)
        if not match:
            continue
        size = int(match.group(1))
        if memory_mib is not None:
            return size if 0.85 * size <= memory_mib / _MIB_PER_GIB <= 1.02 * size else None
        before_hbm = index + 1 < len(words) and _HBM.fullmatch(words[index + 1])
        return size if before_hbm or not _SUPERCHIPS.fullmatch(words[0]) else None
    return None
