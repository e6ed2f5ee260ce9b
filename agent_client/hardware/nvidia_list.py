"""`nvidia-smi -L`: the one place beside NVML that tells UUIDs and profiles of MIG devices. Pure."""

import re
from dataclasses import dataclass

from agent_client.hardware.readings import known

_CARD = re.compile(r"GPU ([0-9]{1,4}): (.*?) ?\(UUID: (GPU-[0-9A-Za-z-]+)\)\s*\Z")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+([0-9]{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMig:
    device: int
    profile: str
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
            cards[-1][1].append(ListedMig(device=int(mig.group(2)), profile=mig.group(1), uuid=mig.group(3)))
    return tuple(
        ListedCard(index=int(card.group(1)), name=known(card.group(2)), uuid=card.group(3), migs=tuple(migs))
        for card, migs in cards
    )
