"""Who holds each card, and since which attempt. A card is free only when it is claimed by nobody and was seen empty."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from agent_client.protocol.states import ShardState
from fleet.domain.types import FleetSnapshot, GpuView, NodeView, ReplicaView, ShardView


class Holding(StrEnum):
    HELD = "held"
    STOPPING = "stopping"
    STOP_STUCK = "stop_stuck"  # an engine that did not end still has it
    FOREIGN = "foreign"
    UNUSABLE = "unusable"
    CORDONED = "cordoned"
    UNSEEN = "unseen"  # its node is silent: nobody knows
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    node: int
    gpu: int
    index: int
    uuid: str
    use: Holding
    text: str  # "llama-70b/2, attempt 3 (loading)"
    replica: str = ""
    attempt: int = 0
    pids: tuple[int, ...] = ()


def ledger(snapshot: FleetSnapshot) -> tuple[CardLine, ...]:
    """Every card of every node, by node's name and index."""
    replicas = {replica.label: replica for replica in snapshot.replicas}
    nodes = sorted(snapshot.nodes, key=lambda node: node.name)
    return tuple(line for node in nodes for line in _of_node(node, replicas))


def _of_node(node: NodeView, replicas: dict[str, ReplicaView]) -> Iterator[CardLine]:
    for gpu in sorted(node.gpus, key=lambda each: (each.index, each.pk)):
        replica = replicas.get(gpu.holder)
        shard = _shard(replica, node, gpu) if replica is not None else None
        use, text = _use(node, gpu, shard)
        yield CardLine(
            node=node.pk,
            gpu=gpu.pk,
            index=gpu.index,
            uuid=gpu.uuid,
            use=use,
            text=text,
            replica=gpu.holder,
            attempt=gpu.holder_attempt,
            pids=shard.pids if shard is not None else (),
        )


def _shard(replica: ReplicaView, node: NodeView, gpu: GpuView) -> ShardView | None:
    """The one that holds the card: an older attempt's may still be ending here while the next runs elsewhere."""
    here = (shard for shard in replica.shards if shard.node == node.pk and shard.epoch == gpu.holder_attempt)
    return next(here, None)


def _use(node: NodeView, gpu: GpuView, shard: ShardView | None) -> tuple[Holding, str]:
    if gpu.holder:
        return _held(gpu, shard)
    if not node.heard:
        return Holding.UNSEEN, f"nobody's by the records; {node.name} is {node.status}"
    if gpu.foreign:
        size = f", {gpu.foreign_mib} MiB" if gpu.foreign_mib else ""
        return Holding.FOREIGN, f"{gpu.foreign}{size}"
    if not gpu.usable:
        return Holding.UNUSABLE, gpu.problem or "its agent says that it is not placeable"
    if not gpu.schedulable:
        return Holding.CORDONED, gpu.cordon_reason or "cordoned"
    return Holding.FREE, "free"


def _held(gpu: GpuView, shard: ShardView | None) -> tuple[Holding, str]:
    who = f"{gpu.holder}, attempt {gpu.holder_attempt}"
    if shard is None:
        return Holding.HELD, who
    if shard.state is ShardState.STOP_STUCK:
        pids = ", ".join(map(str, shard.pids)) or "unknown"
        return Holding.STOP_STUCK, f"{who}: it does not stop (pid {pids})"
    if shard.state is ShardState.STOPPING or not shard.wanted:
        return Holding.STOPPING, f"{who} (stopping)"
    return Holding.HELD, f"{who} ({shard.state})"
