"""Who holds each card."""

from dataclasses import replace

import pytest

from agent_client.protocol.states import ShardState
from fleet.domain.ledger import Holding, ledger
from fleet.domain.types import FleetSnapshot
from tests.domain.pictures import fleet


def with_shard(snapshot: FleetSnapshot, **fields: object) -> FleetSnapshot:
    (replica,) = snapshot.replicas
    shards = tuple(replace(shard, **fields) for shard in replica.shards)
    return replace(snapshot, replicas=(replace(replica, shards=shards),))


def test_each_card_has_one_line_by_node_and_index() -> None:
    lines = ledger(fleet("b: .\na: xfc!."))
    assert [(line.node, line.index, line.use, line.text) for line in lines] == [
        (2, 0, Holding.HELD, "other/1, attempt 1"),
        (2, 1, Holding.FOREIGN, "python (pid 77), 70000 MiB"),
        (2, 2, Holding.CORDONED, "cordoned"),
        (2, 3, Holding.UNUSABLE, "fell off the bus"),
        (2, 4, Holding.FREE, "free"),
        (1, 0, Holding.FREE, "free"),
    ]


@pytest.mark.parametrize(
    ("fields", "use", "text"),
    [
        ({}, Holding.HELD, "a/1, attempt 1 (ready)"),
        ({"state": ShardState.STOPPING}, Holding.STOPPING, "a/1, attempt 1 (stopping)"),
        ({"wanted": False}, Holding.STOPPING, "a/1, attempt 1 (stopping)"),
        (
            {"state": ShardState.STOP_STUCK, "pids": (7, 8)},
            Holding.STOP_STUCK,
            "a/1, attempt 1: it does not stop (pid 7, 8)",
        ),
        ({"epoch": 2}, Holding.HELD, "a/1, attempt 1"),
    ],
)
def test_the_holder_is_told_with_its_state(fields: dict[str, object], use: Holding, text: str) -> None:
    (line,) = ledger(with_shard(fleet("a: A"), **fields))
    assert (line.use, line.text, line.replica, line.attempt) == (use, text, "a/1", 1)


def test_nobody_knows_of_a_silent_node() -> None:
    (line,) = ledger(fleet("a lost: ."))
    assert (line.use, line.text) == (Holding.UNSEEN, "nobody's by the records; a is lost")
