"""What a tick decided about rows that a person deleted meanwhile: it is dropped, and the tick goes on."""

from datetime import UTC, datetime
from typing import get_args

import pytest

from fleet.domain.actions import (
    Action,
    AskNode,
    CreateReplica,
    DeleteReplica,
    DrainShard,
    EndRollout,
    Explain,
    GiveUpShard,
    NodeDrained,
    RemoveReplica,
    SetGoal,
    StartReplica,
    StopShard,
)
from fleet.domain.placement import Placement, ShardPlacement
from fleet.domain.reasons import Refusal
from fleet.domain.states import RolloutState
from fleet.services import reconciler

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GONE = 999
PART = ShardPlacement(rank=0, node=GONE, node_name="n", gpus=())

ACTIONS: list[Action] = [
    CreateReplica(model=GONE, number=1, revision=1),
    RemoveReplica(replica=GONE, reason="r"),
    DeleteReplica(replica=GONE),
    SetGoal(replica=GONE, revision=1),
    DrainShard(shard=GONE, deadline_at=NOW, reason="r"),
    StopShard(shard=GONE, reason="r"),
    GiveUpShard(shard=GONE, code="c", reason="r"),
    StartReplica(replica=GONE, attempt=0, revision=1, placement=Placement(shards=(PART,))),
    Explain(replica=GONE, refusal=Refusal(code="c", text="t")),
    AskNode(rollout=GONE, model=GONE, revision=1, part=PART),
    EndRollout(rollout=GONE, state=RolloutState.DONE),
    NodeDrained(node=GONE),
]


@pytest.mark.django_db
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_an_action_about_a_row_that_is_gone_is_dropped(action: Action) -> None:
    assert reconciler._carry_out((action, action), NOW) == 0


def test_each_action_is_tried() -> None:
    assert {type(action) for action in ACTIONS} == set(get_args(Action))
