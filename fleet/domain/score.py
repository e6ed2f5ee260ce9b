"""What a placement spoils for those that come later: holes that the catalog's own profiles could use.

A hole is a set of free cards that one more replica would fit into. Each size counts by its cards, so breaking a hole of
8 costs as much as breaking four pairs. Where the catalog asks for nothing of a class, holes of 2, 4 and 8 count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent_client.profile import NvlinkRule, Profile

USUAL_SIZES = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """A wish over several nodes: so many, with so many cards on each."""

    nodes: int
    cards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holes:
    """What free cards of one class are worth. Not compared by value: one object per class and snapshot."""

    sizes: tuple[int, ...] = USUAL_SIZES  # inside one NVLink domain
    node_sizes: tuple[int, ...] = ()  # over all of a node
    wide: tuple[Wide, ...] = ()
    _worth: dict[tuple[bool, int], float] = field(default_factory=dict, repr=False, compare=False)

    def in_domain(self, free: int) -> float:
        return self._sum(False, free)

    def on_node(self, free: int) -> float:
        return self._sum(True, free)

    def _sum(self, node: bool, free: int) -> float:
        key = (node, free)
        worth = self._worth.get(key)
        if worth is None:
            sizes = self.node_sizes if node else self.sizes
            worth = self._worth[key] = float(sum(free // size * size for size in sizes))
        return worth


def holes_by_class(profiles: Iterable[Profile], classes: Iterable[str]) -> Mapping[str, Holes]:
    """One for each class of the fleet."""
    known = list(profiles)
    return {name: _holes([each for each in known if name in each.gpu_class or not each.gpu_class]) for name in classes}


def _holes(profiles: list[Profile]) -> Holes:
    inside: set[int] = set()
    on_node: set[int] = set()
    wide: set[tuple[int, int]] = set()
    for profile in profiles:
        cards = profile.gpus_per_node
        if cards == 0:
            continue
        free_of_domains = profile.nvlink is NvlinkRule.OFF or profile.group == 1
        inside |= {1} if free_of_domains else {min(profile.group, cards)}
        if free_of_domains or cards > profile.group:
            on_node.add(cards)
        if profile.nodes > 1:
            wide.add((profile.nodes, cards))
    if not (inside | on_node) - {1}:
        inside |= set(USUAL_SIZES)
    return Holes(
        sizes=tuple(sorted(inside - {1})),
        node_sizes=tuple(sorted(on_node - {1})),
        wide=tuple(Wide(nodes=nodes, cards=cards) for nodes, cards in sorted(wide)),
    )
