"""The search for several nodes: one class, one network, the cheapest nodes on it; blocks of nodes inside one rack.

A network is a fabric on which each node has an active port or, where no fabric serves, one NVLink rack.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice

from fleet.domain.placement_index import Kind
from fleet.domain.placement_scale import Scale
from fleet.domain.placement_search import Ask, Choice, Key, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    gpu_class: str
    fabric: str  # empty: the ranks meet inside one NVLink rack
    ranks: tuple[Choice, ...]


#: Nodes to avoid, copies there already, loss, nodes with room on the network, its name: lower is better.
_Key = tuple[int, int, float, int, str]


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
    best: tuple[_Key, Group] | None = None
    for names, on_fabric in (({} if whole else fabrics, True), (racks, False)):
        for name in (each for each, room in names.items() if room >= ask.shape.nodes):
            if best is not None and _least(scale, name, on_fabric, names[name]) >= best[0]:
                continue
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


def _least(scale: Scale, name: str, on_fabric: bool, room: int) -> _Key:
    """No group on this network has a lower key."""
    losses = (found.loss for _, kind in scale.on_network[on_fabric, name] if (found := scale.take(kind)) is not None)
    nodes = scale.shape.nodes
    return (0, 0, min(losses) * nodes + scale.wide_loss(name, nodes), room, name)


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
    """Nodes of a network, the best first, as far as they are asked for; those to avoid or with a copy come last."""
    special = {*ask.avoid, *ask.copies}
    for _, kinds in groupby(scale.on_network.get((on_fabric, name), ()), key=lambda each: each[0]):
        run = [choice for _, kind in kinds for choice in _of_kind(ask, scale, kind, special)]
        yield from sorted(run, key=_key)
    late = []
    for pk in special:
        slot = ask.index.slots.get(pk, {}).get(scale.gpu_class)
        if slot is not None and (name in slot.kind.networks if on_fabric else name == slot.kind.rack):
            choice = _judge(ask, scale, pk)
            late += [((pk in ask.avoid, ask.tier(pk), choice.key), choice)] if choice else []
    yield from (choice for _, choice in sorted(late, key=lambda each: each[0]))


def _of_kind(ask: Ask, scale: Scale, kind: Kind, special: Collection[int]) -> Iterator[Choice]:
    """As many as a replica could use, and all that have the model's files."""
    wanted = ask.shape.nodes if ask.shape.block == 1 else len(scale.index.nodes)
    for slot in scale.index.cells[scale.gpu_class][kind]:
        pk = slot.node.pk
        if (wanted or pk in ask.files) and pk not in special:
            choice = _judge(ask, scale, pk)
            if choice is not None:
                wanted = max(wanted - 1, 0)
                yield choice
        elif not wanted and not ask.files:
            return


def _judge(ask: Ask, scale: Scale, pk: int) -> Choice | None:
    return judge(ask, scale, pk) if ask.allowed is None or pk in ask.allowed else None


def _key(choice: Choice) -> Key:
    return choice.key


def _name(choice: Choice) -> str:
    return choice.slot.node.name
