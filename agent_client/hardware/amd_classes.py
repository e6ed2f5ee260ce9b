"""A stable word for a kind of AMD card: its product, form and memory, such as `mi300x-oam-192gb`. Pure."""

import re

_OAM = ("mi250", "mi250x", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x")
_PCIE = ("mi50", "mi60", "mi100", "mi210")
#: Words about the vendor, the family, the module or the guest's view, not about the kind of card.
_NOISE = re.compile(r"\b(amd|ati|instinct|radeon|graphics|oam|ac|mba|vf|mcm|[0-9]+ ?gb)\b")
#: Memory sizes in GiB that whole cards are sold with.
_SIZES = (2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 144, 192, 256, 288)
#: ECC on GDDR takes a sixteenth of the memory; what lacks more than that is a part of a card, under its own size.
_MOST_RESERVED = 1.07


def gpu_class(name: str | None, memory_mib: int | None, slot: str | None = None) -> str:
    words = _product(name or "")
    parts = [words or "unknown"]
    form = _form(words, (slot or "").lower())
    if form is not None:
        parts.append(form)
    if memory_mib is not None:
        parts.append(f"{_size_gib(memory_mib)}gb")
    return "-".join(parts)


def _product(name: str) -> str:
    """The product in brackets where there is one; of several the chip's name, which is all that is sure."""
    chip, _, product = name.lower().partition("[")
    product = product.partition("]")[0]
    text = product if product.strip() and "/" not in product else chip
    cleaned = re.sub(r"[^a-z0-9.]+", "-", _NOISE.sub(" ", text)).strip("-")
    return cleaned or re.sub(r"[^a-z0-9.]+", "-", text).strip("-")


def _form(words: str, slot: str) -> str | None:
    if words in _OAM:
        return "oam"
    if words in _PCIE:
        return "pcie"
    if not re.fullmatch(r"mi[0-9]{2,4}[a-z]?", words):
        return None  # a desktop card has one form
    return {"oam": "oam", "pcie": "pcie"}.get(slot)


def _size_gib(memory_mib: int) -> int:
    gib = -(-memory_mib // 1024)
    usual = next((size for size in _SIZES if size >= gib), gib)
    return usual if usual <= gib * _MOST_RESERVED else gib
