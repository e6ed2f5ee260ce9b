"""The tables of states, and the page drawn from them."""

from collections.abc import Mapping
from enum import StrEnum

import pytest

from agent_client.protocol.states import ShardState
from fleet.domain.states import (
    NODE_MEANINGS,
    NODE_TRANSITIONS,
    REPLICA_MEANINGS,
    REPLICA_TRANSITIONS,
    ROLLOUT_MEANINGS,
    ROLLOUT_TRANSITIONS,
    SHARD_MEANINGS,
    SHARD_TRANSITIONS,
    NodeStatus,
    ReplicaState,
    RolloutState,
)
from tests.domain import document

TABLES = [(NodeStatus, NODE_TRANSITIONS), (ShardState, SHARD_TRANSITIONS), (ReplicaState, REPLICA_TRANSITIONS)]
TABLES += [(RolloutState, ROLLOUT_TRANSITIONS)]
MEANINGS = [(NodeStatus, NODE_MEANINGS), (ShardState, SHARD_MEANINGS), (ReplicaState, REPLICA_MEANINGS)]
MEANINGS += [(RolloutState, ROLLOUT_MEANINGS)]


def test_the_page_of_states_is_fresh() -> None:
    assert document.PATH.read_text(encoding="utf-8") == document.text(), "run: python -m tests.domain.document"


@pytest.mark.parametrize(("states", "table"), TABLES + MEANINGS)
def test_every_state_is_in_its_tables(states: type[StrEnum], table: Mapping[StrEnum, object]) -> None:
    assert set(table) == set(states)


@pytest.mark.parametrize(("states", "table"), TABLES)
def test_every_state_can_be_reached_from_the_first(
    states: type[StrEnum], table: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    reached = {next(iter(states))}
    while more := {target for state in reached for target in table[state]} - reached:
        reached |= more
    assert reached == set(states)
