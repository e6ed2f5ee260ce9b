"""Which cards of one node a rank takes: whole tensor-parallel groups inside NVLink domains, at the least loss of holes.

Only how many cards are free in each domain matters here, so nodes that look alike are judged once.
"""

from typing import NamedTuple

from agent_client.profile import NvlinkRule, Profile
from fleet.domain.score import Holes

#: A pair of unknown topology is taken only where no NVLink pair is free, whatever holes that one breaks.
UNKNOWN_LOSS = 1e6


class Shape(NamedTuple):
    """What a profile needs of the fleet, in cards."""

    nodes: int
    cards: int  # on each node
    group: int  # cards on a node that must share an NVLink domain; 1: they need not
    block: int = 1  # nodes in a row that must share one rack's NVLink domain
    pairs: bool = False  # two cards of unknown topology are good enough


class Room(NamedTuple):
    """Free cards of one class on one node."""

    domains: tuple[int, ...]  # in each NVLink domain, the largest first
    unknown: int = 0  # of unknown topology

    @property
    def total(self) -> int:
        return sum(self.domains) + self.unknown


class Take(NamedTuple):
    """How many cards of each of a room's domains, and of those of unknown topology."""

    domains: tuple[int, ...]
    unknown: int
    loss: float
    left: int  # cards that stay free in the domains that were touched


def shape_of(profile: Profile) -> Shape:
    nodes, cards, group = profile.nodes, profile.gpus_per_node, profile.group
    if profile.nvlink is NvlinkRule.OFF or group <= 1:
        return Shape(nodes=nodes, cards=cards, group=1)
    if cards % group == 0:
        pairs = profile.nvlink is NvlinkRule.PREFER and group == 2
        return Shape(nodes=nodes, cards=cards, group=group, pairs=pairs)
    # A group over nodes: each whole block of nodes is in one rack; where it does not come out even, the whole replica.
    return Shape(nodes=nodes, cards=cards, group=cards, block=group // cards if group % cards == 0 else nodes)


def take(room: Room, shape: Shape, holes: Holes) -> Take | None:
    """The cheapest way to find a rank's cards in a room; None when there is none."""
    if shape.cards > room.total:
        return None
    found = [_one_domain(room, place, shape.cards, holes) for place in _fitting(room, shape.cards)]
    if shape.cards > shape.group:
        scattered = _scattered(room, shape, holes)
        found += [scattered] if scattered else []
    if not found and shape.pairs and shape.cards == 2 and room.unknown >= 2:
        loss = UNKNOWN_LOSS + holes.on_node(room.total) - holes.on_node(room.total - 2)
        return Take((0,) * len(room.domains), 2, loss, room.unknown - 2)
    return min(found, key=lambda each: (each.loss, each.left)) if found else None


def _fitting(room: Room, cards: int) -> list[int]:
    """Places of domains that hold so many; of equally large ones the first. An unknown card is a domain of its own."""
    seen: set[int] = set()
    out = []
    for place, free in enumerate(room.domains):
        if free >= cards and free not in seen:
            seen.add(free)
            out.append(place)
    return [*out, len(room.domains)] if cards == 1 and room.unknown else out


def _one_domain(room: Room, place: int, cards: int, holes: Holes) -> Take:
    on_node = holes.on_node(room.total) - holes.on_node(room.total - cards)
    if place == len(room.domains):
        return Take((0,) * place, 1, on_node, 0)
    free = room.domains[place]
    loss = holes.in_domain(free) - holes.in_domain(free - cards) + on_node
    return Take(tuple(cards if n == place else 0 for n in range(len(room.domains))), 0, loss, free - cards)


def _scattered(room: Room, shape: Shape, holes: Holes) -> Take | None:
    """Group by group wherever the next one costs least; on a tie where the last one went, then the fullest domain."""
    free = [*room.domains, *([1] * room.unknown)]
    taken = [0] * len(free)
    group, last = shape.group, -1
    for _ in range(shape.cards // group):
        best: tuple[float, bool, int, int] | None = None
        for place, left in enumerate(free):
            if left >= group:
                cost = holes.in_domain(left) - holes.in_domain(left - group)
                key = (cost, place != last, left, place)
                best = key if best is None or key < best else best
        if best is None:
            return None
        last = best[3]
        free[last] -= group
        taken[last] += group
    domains = tuple(taken[: len(room.domains)])
    loss = sum(holes.in_domain(had) - holes.in_domain(had - n) for had, n in zip(room.domains, domains, strict=True))
    loss += holes.on_node(room.total) - holes.on_node(room.total - shape.cards)
    left = sum(had - n for had, n in zip(room.domains, domains, strict=True) if n)
    return Take(domains, sum(taken[len(room.domains) :]), loss, left)
