"""Where the ranks of a multi-node replica meet: a port on the head's node, another one at each attempt.

A port that was just used may still be held by sockets in TIME_WAIT, or by a rank of the old attempt that is not gone.
"""

from collections.abc import Collection, Iterable

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.types import ReplicaView


def ports_in_use(replicas: Iterable[ReplicaView]) -> set[tuple[int, int]]:
    """(head's node, port) of every attempt of which something may still run."""
    used = set()
    for replica in replicas:
        heads = {shard.epoch: shard.node for shard in replica.shards if shard.rank == 0}
        for shard in replica.shards:
            if shard.rendezvous_port is not None and shard.state not in ENDED_SHARD_STATES:
                used.add((heads.get(shard.epoch, shard.node), shard.rendezvous_port))
    return used


def last_port(replica: ReplicaView) -> int | None:
    ports = [(shard.epoch, shard.rendezvous_port) for shard in replica.shards if shard.rendezvous_port is not None]
    return max(ports)[1] if ports else None


def choose_port(ports: range, used: Collection[tuple[int, int]], node: int, *, last: int | None) -> int | None:
    """The next free one after the last, around the range; None when the head's node has none left.

    >>> choose_port(range(21000, 21003), {(1, 21001)}, 1, last=21000)
    21002
    >>> choose_port(range(21000, 21003), set(), 1, last=21002)
    21000
    """
    begin = ports.index(last) + 1 if last is not None and last in ports else 0
    around = [*ports[begin:], *ports[:begin]]
    free = (port for port in around if (node, port) not in used and port != last)
    return next(free, None)
