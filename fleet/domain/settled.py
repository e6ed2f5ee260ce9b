"""Who needs nothing: a tick over the whole fleet has no action for a settled model, so one that hurries leaves it out.

Nor does a settled model stand in the way of another's decisions, save by the cards and ports that it holds.
"""

from collections.abc import Collection

from agent_client.protocol.states import ShardState
from fleet.domain.states import ReplicaState, ReplicaWish
from fleet.domain.types import FleetSnapshot, ModelView, ReplicaView, ShardView


def unsettled(snapshot: FleetSnapshot) -> frozenset[int]:
    """Models with something to do or to wait for; of replicas whose model is no longer managed, too."""
    models = {model.pk: model for model in snapshot.models}
    rows: dict[int, list[ReplicaView]] = {pk: [] for pk in models}
    for replica in snapshot.replicas:
        rows.setdefault(replica.model, []).append(replica)
    return frozenset(pk for pk, mine in rows.items() if pk not in models or not settled(models[pk], mine))


def settled(model: ModelView, replicas: Collection[ReplicaView]) -> bool:
    """As many as are wished, all of them ready at the stable revision, and nobody wants anything of them."""
    if model.rollout is not None or len(replicas) != model.replicas:
        return False
    return all(_rests(replica, model.stable) for replica in replicas)


def _rests(replica: ReplicaView, revision: int) -> bool:
    if replica.wish is not ReplicaWish.RUN or replica.state is not ReplicaState.READY or replica.restart_requested:
        return False
    if replica.revision != revision or replica.goal is not None or replica.replaces is not None:
        return False
    has_head = any(shard.rank == 0 for shard in replica.shards)
    return has_head and all(_serves(shard, replica.attempt) for shard in replica.shards)


def _serves(shard: ShardView, attempt: int) -> bool:
    """A rank of the newest attempt that is ready, stays where it is, and does not look as if it hung."""
    stays = shard.wanted and not shard.draining and shard.evacuate_at is None and shard.stalled_at is None
    return stays and shard.state is ShardState.READY and shard.epoch == attempt
