"""The search for several nodes: one class, one network, the cheapest nodes on it; blocks of nodes inside one rack.

A network is a fabric on which each node has an active port or, where no fabric serves, one NVLink rack.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from fleet.domain.placement_search import Ask, Choice, Scale, Score, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    gpu_class: str
    fabric: str  # empty: the ranks meet inside one NVLink rack
    ranks: tuple[Choice, ...]


#: How good a node is within its network: to be avoided, copies there already, then as for one node.
_Rank = tuple[bool, int, Score, bool, tuple[bool, str]]


def several_nodes(ask: Ask) -> Group | None:
    for gpu_class in ask.classes:
        if gpu_class in ask.index.cells:
            found = _in_class(ask, gpu_class)
            if found is not None:
                return found
    return None


def _in_class(ask: Ask, gpu_class: str) -> Group | None:
    scale = Scale(ask.index, gpu_class, ask.shape)
    fabrics, racks = networks(scale)
    whole = ask.shape.block == ask.shape.nodes
    best: tuple[tuple[int, int, float, int, str], Group] | None = None
    for names, on_fabric in (({} if whole else fabrics, True), (racks, False)):
        for name in names:
            ranks = _ranks(ask, scale, name, on_fabric)
            if ranks is None:
                continue
            key = (
                sum(choice.slot.node.pk in ask.avoid for choice in ranks),
                sum(ask.tier(choice.slot.node.pk) for choice in ranks),
                sum(choice.take.loss for choice in ranks) + scale.wide_loss(name, ask.shape.nodes),
                names[name],  # the tightest network that serves
                name,
            )
            fabric = name if on_fabric else shared_fabric(ranks)
            group = Group(gpu_class=gpu_class, fabric=fabric, ranks=tuple(ranks))
            best = (key, group) if best is None or key < best[0] else best
        if best is not None:
            return best[1]
    return None


def networks(scale: Scale) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Fabrics and racks by name, and how many nodes on each have room for a rank."""
    fabrics: dict[str, int] = {}
    racks: dict[str, int] = {}
    for kind, members in scale.index.cells[scale.gpu_class].items():
        if scale.take(kind) is None:
            continue
        for name in kind.networks:
            fabrics[name] = fabrics.get(name, 0) + len(members)
        if kind.rack:
            racks[kind.rack] = racks.get(kind.rack, 0) + len(members)
    return dict(sorted(fabrics.items())), dict(sorted(racks.items()))


def shared_fabric(ranks: Collection[Choice]) -> str:
    """A fabric on which every rank has an active port; the racks' nodes usually have one, too."""
    common = set.intersection(*(set(choice.slot.kind.networks) for choice in ranks))
    return min(common, default="")


def _ranks(ask: Ask, scale: Scale, name: str, on_fabric: bool) -> list[Choice] | None:
    """The nodes of one network, in rank order: by name, blocks together."""
    shape = ask.shape
    if shape.block == 1 or not on_fabric:
        found = list(islice(_best(ask, scale, name, on_fabric), shape.nodes))
        return sorted(found, key=_name) if len(found) == shape.nodes else None
    racks: dict[str, list[Choice]] = {}
    for choice in _best(ask, scale, name, on_fabric):
        if choice.slot.kind.rack:
            racks.setdefault(choice.slot.kind.rack, []).append(choice)
    out: list[Choice] = []
    # The racks with the least to spare first, so that large ones stay whole.
    for rack in sorted(racks, key=lambda each: (len(racks[each]) % shape.block, len(racks[each]), each)):
        members = racks[rack]
        room = min(len(members) // shape.block, (shape.nodes - len(out)) // shape.block) * shape.block
        out += sorted(members[:room], key=_name)
    return out if len(out) == shape.nodes else None


def _best(ask: Ask, scale: Scale, name: str, on_fabric: bool) -> Iterator[Choice]:
    """Nodes of a network, the best first; nodes of one kind are looked at only as far as they are asked for."""
    special = {*ask.avoid, *ask.copies}
    late: list[tuple[_Rank, Choice]] = []
    run: list[tuple[_Rank, Choice]] = []
    score: Score | None = None
    for each, kind, _ in scale.ranked():
        if (name not in kind.networks) if on_fabric else (name != kind.rack):
            continue
        if score is not None and each != score:
            yield from (choice for _, choice in sorted(run, key=_rank))
            run = []
        score = each
        taken = 0
        for slot in scale.index.cells[scale.gpu_class][kind]:
            pk = slot.node.pk
            files = pk in ask.files
            if taken >= ask.shape.nodes and not files and pk not in special and ask.shape.block == 1:
                continue
            choice = judge(ask, scale, pk)
            if choice is None or (ask.allowed is not None and pk not in ask.allowed):
                continue
            rank = (pk in ask.avoid, ask.tier(pk), *choice.key)
            if pk in special:
                late.append((rank, choice))
            else:
                run.append((rank, choice))
                taken += not files
    yield from (choice for _, choice in sorted(run, key=_rank))
    yield from (choice for _, choice in sorted(late, key=_rank))


def _rank(each: tuple[_Rank, Choice]) -> _Rank:
    return each[0]


def _name(choice: Choice) -> str:
    return choice.slot.node.name
