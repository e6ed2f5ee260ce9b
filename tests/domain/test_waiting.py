"""What a rollout that waits says: whom or what it waits for, by name, from what is there now."""

from dataclasses import replace
from datetime import timedelta

import pytest

from fleet.domain.actions import SetGoal, StartReplica
from fleet.domain.room import SnapshotRoom
from fleet.domain.states import CheckState, NodeStatus, RolloutState
from fleet.domain.types import CheckView
from fleet.domain.waiting import rollout_waits
from tests.domain.test_reconcile import serving
from tests.domain.world import World, profile


def said(made: World) -> str:
    snapshot = made.snapshot()
    return rollout_waits(made.models[1], snapshot, made.now, room=SnapshotRoom(snapshot))


def until(made: World, kind: type) -> None:
    """Ticks and obedient agents until something of the kind is decided."""
    while not any(isinstance(action, kind) for action in made.tick()):
        made.obey()


def rolling(*cards: int, copies: int = 1) -> World:
    made = serving(*cards, copies=copies)
    made.roll_out(1, profile(max_model_len=4096))
    return made


def asked(made: World, state: CheckState) -> None:
    rollout = made.models[1].rollout
    assert rollout is not None
    made.change(1, rollout=replace(rollout, checks={1: CheckView(state=state)}))


def test_nothing_under_way_waits_for_nothing() -> None:
    assert said(serving(2, copies=1)) == ""


def test_a_paused_one_waits_for_a_person() -> None:
    made = rolling(2)
    rollout = made.models[1].rollout
    assert rollout is not None
    made.change(1, rollout=replace(rollout, state=RolloutState.PAUSED))
    assert said(made) == "it waits to be resumed: it is paused"


def test_an_open_question_is_told_with_the_node_that_was_asked() -> None:
    made = rolling(2)
    asked(made, CheckState.OPEN)
    assert said(made) == "it waits for the answer of n1 whether revision 2 could run there"
    made.nodes[1] = replace(made.nodes[1], status=NodeStatus.UNREACHABLE, silent_seconds=40.0)
    assert "n1 is unreachable, silent for 40 s" in said(made)
    asked(made, CheckState.PASSED)
    made.nodes[1] = replace(made.nodes[1], status=NodeStatus.READY)
    assert said(made) == ""  # the next look goes on


def test_without_room_the_question_and_the_drain_say_so() -> None:
    made = rolling(1)
    asked(made, CheckState.OPEN)
    assert "; a substitute beside it has no room: 0 of 1 node fit: n1 has 0 free h100, 1 needed" in said(made)
    asked(made, CheckState.PASSED)
    until(made, SetGoal)
    made.tick()  # it is drained
    (shard,) = made.shards
    made.shards[shard] = replace(made.shards[shard], running=3)
    made.now += timedelta(seconds=10)
    text = said(made)
    assert text.startswith(
        "it waits for m1/1 to end on n1, before it starts at revision 2: it is drained with 3 requests in it, for "
    )
    assert "at most; a substitute beside it has no room: " in text
    made.shards[shard] = replace(made.shards[shard], drain_deadline_at=made.now)
    assert "and its time is over" in said(made)


def test_a_substitute_that_loads_is_told_with_its_node_and_state() -> None:
    made = rolling(1, 1)
    (home,) = {shard.node for shard in made.shards.values()}
    until(made, StartReplica)
    made.obey()
    assert said(made) == f"it waits for m1/2 to be ready at revision 2 on n{3 - home}: it is loading"
    made.nodes[3 - home] = replace(made.nodes[3 - home], status=NodeStatus.UNREACHABLE)
    assert said(made).endswith(f"it is loading; n{3 - home} is unreachable")


def test_one_that_has_no_place_yet_or_is_tried_again_is_told() -> None:
    made = rolling(2)
    while len(made.replicas) < 2:
        made.tick()
    assert said(made) == "it waits for a place for m1/2 at revision 2"
    new = max(made.replicas)
    made.replicas[new] = replace(made.replicas[new], next_try_at=made.now + timedelta(seconds=8))
    assert said(made) == "it waits for the next try of m1/2 at revision 2, in 8 s"


def test_a_drain_of_a_node_goes_first() -> None:
    made = serving(1, 1, copies=1)
    (home,) = {shard.node for shard in made.shards.values()}
    made.leaving[home] = made.now + timedelta(seconds=600)
    made.tick()
    made.roll_out(1, profile(max_model_len=4096))
    assert said(made) == "it waits for m1/2 to take over from m1/1: it is pending"


def test_a_profile_that_can_not_be_read_is_told() -> None:
    made = rolling(2)
    made.change(1, profile=None, profile_error="cannot use profile: `engine` is missing")
    made.change(1, older={})
    assert "a profile that can be read: that of revision 2 can't (cannot use profile: `engine`" in said(made)


@pytest.mark.parametrize(("cards", "copies"), [((2,), 1), ((1, 1), 2), ((2,), 2), ((1, 1, 1), 2)])
def test_whatever_is_under_way_has_words_unless_the_next_tick_acts(cards: tuple[int, ...], copies: int) -> None:
    made = rolling(*cards, copies=copies)
    for _ in range(60):
        text = said(made)
        assert text or made.models[1].rollout is None or made.decide(), made.done
        made.tick()
        made.obey()
        made.now += timedelta(seconds=1)
    assert said(made) == ""
