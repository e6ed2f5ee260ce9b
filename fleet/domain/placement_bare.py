"""Replicas that take no card: on one node, or on several of one fabric; and how ranks on nodes become a placement."""

from collections.abc import Sequence

from agent_client.profile import Arrangement, Profile
from fleet.domain.placement_env import meeting_address, settings
from fleet.domain.placement_search import Ask
from fleet.domain.placement_types import Placement, ShardPlacement
from fleet.domain.types import NodeView


def without_cards(ask: Ask) -> Placement | None:
    """Spread by what runs there, or packed onto what is begun when the profile's own copies are not to be spread."""
    fitting = sorted((node for node in ask.index.nodes.values() if fits(ask, node)), key=lambda node: _key(ask, node))
    if ask.shape.nodes == 1:
        return over(ask.profile, fitting[:1], [()]) if fitting else None
    best: tuple[list[tuple[bool, int, bool, int, bool, str]], str, list[NodeView]] | None = None
    for fabric in sorted({name for node in fitting for name in fabrics_of(node)}):
        nodes = [node for node in fitting if fabric in fabrics_of(node)][: ask.shape.nodes]
        if len(nodes) == ask.shape.nodes:
            found = ([_key(ask, node) for node in nodes], fabric, nodes)
            best = found if best is None else min(best, found, key=lambda each: each[:2])
    if best is None:
        return None
    nodes = sorted(best[2], key=lambda node: node.name)
    return over(ask.profile, nodes, [()] * len(nodes), fabric=best[1])


def fits(ask: Ask, node: NodeView) -> bool:
    """One rank without cards could run there."""
    return node.standing and ask.passes(node)


def fabrics_of(node: NodeView) -> frozenset[str]:
    """Those on which it has an active port."""
    return frozenset(port.fabric for port in node.ports if port.fabric and port.active)


def over(
    profile: Profile,
    nodes: Sequence[NodeView],
    cards: Sequence[tuple[int, ...]],
    *,
    fabric: str = "",
    gpu_class: str = "",
) -> Placement:
    """Ranks in the order of the nodes; `cards` are primary keys, node by node."""
    several = len(nodes) > 1
    shards = tuple(
        ShardPlacement(
            rank=rank,
            node=node.pk,
            node_name=node.name,
            gpus=gpus,
            fabric_env={row.name: row.value for row in settings(profile, node, fabric, nodes)} if several else {},
        )
        for rank, (node, gpus) in enumerate(zip(nodes, cards, strict=True))
    )
    address, origin = meeting_address(nodes, fabric) if several else ("", "")
    return Placement(
        shards=shards, gpu_class=gpu_class, fabric=fabric, head_address=address, head_address_origin=origin
    )


def _key(ask: Ask, node: NodeView) -> tuple[bool, int, bool, int, bool, str]:
    busy = node.shards + ask.index.busy.get(node.pk, 0)
    copies = ask.tier(node.pk) if ask.profile.arrangement is Arrangement.SPREAD else 0
    return (node.pk in ask.avoid, copies, node.pk not in ask.files, busy, node.unstable, node.name)
