"""The best place for one replica, or None: nothing is said about why."""

from collections.abc import Collection

from agent_client.profile import Profile
from fleet.domain.placement_bare import over, without_cards
from fleet.domain.placement_groups import Group, several_nodes
from fleet.domain.placement_index import FleetIndex
from fleet.domain.placement_search import Ask, one_node
from fleet.domain.placement_types import Placement, ShardPlacement


def find(
    index: FleetIndex, profile: Profile, *, model: int | None = None, avoid: Collection[int] = ()
) -> Placement | None:
    return find_for(Ask(index=index, profile=profile, model=model, avoid=avoid))


def find_for(ask: Ask) -> Placement | None:
    if ask.shape.cards == 0:
        return without_cards(ask)
    if ask.shape.nodes > 1:
        group = several_nodes(ask)
        return _grouped(ask, group) if group is not None else None
    found = one_node(ask)
    if found is None:
        return None
    gpu_class, choice = found
    node = choice.slot.node
    shard = ShardPlacement(rank=0, node=node.pk, node_name=node.name, gpus=tuple(gpu.pk for gpu in choice.gpus))
    return Placement(shards=(shard,), gpu_class=gpu_class)


def _grouped(ask: Ask, group: Group) -> Placement:
    nodes = [choice.slot.node for choice in group.ranks]
    cards = [tuple(gpu.pk for gpu in choice.gpus) for choice in group.ranks]
    return over(ask.profile, nodes, cards, fabric=group.fabric, gpu_class=group.gpu_class)
