"""NVLink domains out of what each card says of its links and its fabric. Pure.

Link state says nothing of an NVSwitch fabric (links train in hardware since Hopper), so where the driver tells the
fabric's state that counts. A zero cluster UUID means "this node only"; the clique alone is not unique.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GPU, PROCESSOR, SWITCH = 0, 1, 2
#: nvmlGpuFabricState_t
FABRIC_STATES = ("Not Supported", "Not Started", "In Progress", "Completed")
COMPLETED = 3
_HEALTH_BITS = ("degraded bandwidth", "route recovery", "route unhealthy", "access timeout recovery")
_HEALTH_SUMMARY = {1: "Healthy", 2: "Unhealthy", 3: "Limited capacity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    up: bool | None  # None: this link does not answer
    type: int | None = None  # what is at the other end; None: an old driver does not tell
    bus: str | None = None  # of the other end, as sysfs spells it


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricInfo:
    state: int
    status: int  # an nvmlReturn
    cluster: str = ""  # UUID with hyphens; empty when it is zero
    clique: int = 0
    health_mask: int = 0
    health_summary: int | None = None

    @property
    def supported(self) -> bool:
        return self.state != 0

    @property
    def ready(self) -> bool:
        return self.state == COMPLETED and self.status == 0

    @property
    def health(self) -> str | None:
        """Two bits a question, 1 is bad; the summary, where there is one, is the driver's own."""
        bad = [word for place, word in enumerate(_HEALTH_BITS) if (self.health_mask >> (2 * place)) & 3 == 1]
        summary = _HEALTH_SUMMARY.get(self.health_summary or 0)
        if bad:
            return f"{summary if summary and summary != 'Healthy' else 'Unhealthy'} ({', '.join(bad)})"
        return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLinks:
    index: int
    bus: str | None
    links: Sequence[Link] = ()
    fabric: FabricInfo | None = None
    mig: bool = False  # in slices: the driver takes its links out of use


def domains(cards: Iterable[CardLinks], *, silent: Iterable[str | None] = ()) -> list[dict[str, Any]]:
    """Each card in exactly one: rack (spans nodes), switch, bridge, or single.

    `silent`: places of cards that are here and don't answer, so that a link to one is not taken for a switch.
    """
    ordered = sorted(cards, key=lambda card: card.index)
    groups: dict[tuple[str, ...], list[int]] = {}
    rest: dict[int, CardLinks] = {}
    known = {bus for bus in (*(card.bus for card in ordered), *silent) if bus}
    for card in ordered:
        key = _switch_key(card, known)
        if key is None:
            rest[card.index] = card
        else:
            groups.setdefault(key, []).append(card.index)
    out = [_switched(key, members, ordered) for key, members in groups.items()]
    out += [_bridged(members, rest) for members in _components(rest)]
    return sorted(out, key=lambda domain: min(domain["gpus"]))


def on_switch(cards: Iterable[CardLinks]) -> bool:
    """Whether the machine has an NVSwitch: a link that ends there, or a fabric that the driver speaks of."""
    listed = list(cards)
    known = {card.bus for card in listed if card.bus}
    return any(
        (card.fabric is not None and card.fabric.supported)
        or any(link.up and _is_switch(link, known) for link in card.links)
        for card in listed
    )


def down(card: CardLinks, *, switched: bool) -> str | None:
    """Links that are not up. None up at all is no fault of a card in slices, or of one without a bridge."""
    up, unknown = (sum(link.up is wanted for link in card.links) for wanted in (True, None))
    unused = up == unknown == 0 and (card.mig or not switched)
    if up == len(card.links) or unused:
        return None
    silent = f", {unknown} {'does' if unknown == 1 else 'do'} not answer" if unknown else ""
    return f"{up} of {len(card.links)} NVLinks are up{silent}"


def _switch_key(card: CardLinks, known: set[str]) -> tuple[str, ...] | None:
    if not any(link.up and _is_switch(link, known) for link in card.links):
        return None
    fabric = card.fabric
    if fabric is None or not fabric.supported:
        return ("switch",)  # A100: links alone decide
    if not fabric.ready:
        return None
    return ("rack", fabric.cluster, str(fabric.clique)) if fabric.cluster else ("switch",)


def _is_switch(link: Link, known: set[str]) -> bool:
    """An end that is not named, or that is no card here (in a virtual machine), is a switch: so NCCL takes it."""
    return link.type == SWITCH or (link.type not in (GPU, PROCESSOR) and link.bus not in known)


def _switched(key: tuple[str, ...], members: list[int], cards: Sequence[CardLinks]) -> dict[str, Any]:
    if key[0] == "rack":
        cluster, clique = key[1], int(key[2])
        return _domain(f"{cluster}.{clique}", members, "rack", cluster=cluster, clique=clique)
    if len(members) > 1:
        return _domain("nvswitch", members, "switch")
    return _single(next(card for card in cards if card.index == members[0]))


def _bridged(members: list[int], cards: Mapping[int, CardLinks]) -> dict[str, Any]:
    first = cards[members[0]]
    if len(members) == 1:
        return _single(first)
    return _domain(f"nvlink-{first.bus or first.index}", members, "bridge")


def _single(card: CardLinks) -> dict[str, Any]:
    return _domain(f"gpu-{card.bus or card.index}", [card.index], "single")


def _domain(
    name: str, members: list[int], kind: str, *, cluster: str | None = None, clique: int | None = None
) -> dict[str, Any]:
    return {"id": name, "gpus": members, "kind": kind, "cluster": cluster, "clique": clique}


def _components(cards: Mapping[int, CardLinks]) -> list[list[int]]:
    """Connected by links that are up and end at a card here."""
    by_bus = {card.bus: card.index for card in cards.values() if card.bus}
    peers: dict[int, set[int]] = {index: set() for index in cards}
    for card in cards.values():
        for link in card.links:
            other = by_bus.get(link.bus or "") if link.up and link.type in (GPU, None) else None
            if other is not None and other != card.index:
                peers[card.index].add(other)
                peers[other].add(card.index)
    left, out = set(cards), []
    while left:
        reached: set[int] = set()
        edge = {min(left)}
        while edge:
            reached |= edge
            edge = {peer for index in edge for peer in peers[index]} - reached
        left -= reached
        out.append(sorted(reached))
    return out
