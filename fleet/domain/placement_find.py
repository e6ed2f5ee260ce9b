"""The best place for one replica, or None: nothing is said about why."""

from collections.abc import Collection

from agent_client.profile import Arrangement, Profile
from fleet.domain.placement_env import meeting_address, settings
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
        return _without_cards(ask)
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


def _without_cards(ask: Ask) -> Placement | None:
    """Spread by what runs there, or packed onto what is begun when the profile's own copies are not to be spread."""
    index = ask.index
    best: tuple[tuple[bool, int, bool, int, bool, str], ShardPlacement] | None = None
    for node in index.nodes.values():
        if not node.standing or not ask.passes(node):
            continue
        busy = node.shards + index.busy.get(node.pk, 0)
        copies = ask.tier(node.pk) if ask.profile.arrangement is Arrangement.SPREAD else 0
        key = (node.pk in ask.avoid, copies, node.pk not in ask.files, busy, node.unstable, node.name)
        if best is None or key < best[0]:
            best = (key, ShardPlacement(rank=0, node=node.pk, node_name=node.name))
    return None if best is None else Placement(shards=(best[1],))


def _grouped(ask: Ask, group: Group) -> Placement:
    nodes = [choice.slot.node for choice in group.ranks]
    shards = tuple(
        ShardPlacement(
            rank=rank,
            node=choice.slot.node.pk,
            node_name=choice.slot.node.name,
            gpus=tuple(gpu.pk for gpu in choice.gpus),
            fabric_env={row.name: row.value for row in settings(ask.profile, choice.slot.node, group.fabric, nodes)},
        )
        for rank, choice in enumerate(group.ranks)
    )
    return Placement(
        shards=shards,
        gpu_class=group.gpu_class,
        fabric=group.fabric,
        head_address=meeting_address(nodes, group.fabric),
    )
