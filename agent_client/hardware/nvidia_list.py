"""`nvidia-smi -L`: the one place beside NVML that tells UUIDs and profiles of MIG devices. Pure."""

import re
from dataclasses import dataclass

from agent_client.hardware.readings import known

_CARD = re.compile(r"GPU ([0-9]{1,4}): (.*?) ?\(UUID: (GPU-[0-9A-Za-z-]+)\)\s*\Z")
_MIG = re.compile(r"\s+MIG (.*?)\s*Device\s+([0-9]{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)\s*\Z")
#: `1g.10gb`, part of an instance `1c.3g.40gb`, with more or fewer engines `1g.10gb+me`, `1g.24gb-me`.
_PROFILE = re.compile(r"(?:[0-9]{1,2}c\.)?[0-9]{1,2}g\.[0-9]{1,4}gb(?:[+-][a-z]+(?:\.[a-z]+)?)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMig:
    device: int
    profile: str | None  # None: not told in a form that is known
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCard:
    index: int
    name: str | None
    uuid: str
    migs: tuple[ListedMig, ...] = ()


def parse(text: str) -> tuple[ListedCard, ...]:
    """Lines of another form are skipped; a MIG line belongs to the card above it."""
    cards: list[tuple[re.Match[str], list[ListedMig]]] = []
    for line in text.splitlines():
        if card := _CARD.match(line):
            cards.append((card, []))
        elif cards and (mig := _MIG.match(line)):
            found = ListedMig(device=int(mig.group(2)), profile=profile(mig.group(1)), uuid=mig.group(3))
            cards[-1][1].append(found)
    return tuple(
        ListedCard(index=int(card.group(1)), name=known(card.group(2)), uuid=card.group(3), migs=tuple(migs))
        for card, migs in cards
    )


def profile(words: str | None) -> str | None:
    """The MIG profile that a name ends in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), and nothing that only stands there."""
    last = (words or "").rpartition(" ")[2]
    return last if _PROFILE.fullmatch(last) else None
