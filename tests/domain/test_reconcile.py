"""What a tick decides, over a fleet in memory."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent_client.profile import Arrangement
from agent_client.protocol.states import ShardState
from fleet.domain.actions import (
    AskNode,
    CreateReplica,
    DrainShard,
    EndRollout,
    GiveUpShard,
    NodeDrained,
    RemoveReplica,
    SetGoal,
    StartReplica,
    StopShard,
)
from fleet.domain.states import ReplicaState, ReplicaWish, RolloutState
from fleet.domain.types import FlowView
from tests.domain.world import World, profile


def world(*cards: int) -> World:
    made = World()
    for count in cards:
        made.add_node(count)
    return made


def kinds(actions: object) -> list[str]:
    return [type(action).__name__ for action in actions]  # type: ignore[attr-defined]


# -- groups ------------------------------------------------------------------------------------------------------------


def group(*cards: int) -> World:
    made = world(*cards)
    made.add_model(1, profile(cards=4, nodes=2))
    made.settle()
    assert made.ready(1) == 1
    return made


def shard_of(made: World, rank: int) -> int:
    newest = max(shard.epoch for shard in made.shards.values())
    return next(pk for pk, shard in made.shards.items() if shard.rank == rank and shard.epoch == newest)


def test_a_failed_rank_ends_all_others_before_the_next_attempt_starts() -> None:
    made = group(4, 4)
    made.move(shard_of(made, 1), ShardState.FAILED)
    assert kinds(made.tick()) == ["StopShard"]
    assert made.state(1) is ReplicaState.DEGRADED
    made.now += timedelta(minutes=1)
    assert made.tick() == ()  # rank 0 has not ended yet
    made.obey()
    (start,) = made.tick()
    assert isinstance(start, StartReplica)
    assert start.attempt == 1


def test_a_lost_rank_restarts_the_group_elsewhere() -> None:
    made = group(4, 4, 4)
    made.lose(2)
    made.settle()
    assert made.ready(1) == 1
    assert {made.shards[pk].node for pk in made.claims.values()} == {1, 3}
    made.find_back(2)
    made.settle()
    assert {made.shards[pk].node for pk in made.claims.values()} == {1, 3}  # the old rank was not taken back
    assert made.replicas[1].attempt == 2


def test_a_node_that_is_back_before_anything_was_replaced_is_taken_back() -> None:
    made = world(4)
    made.add_model(1, profile(cards=4))
    made.settle()
    made.lose(1)
    made.settle()
    made.find_back(1)
    made.settle()
    assert made.ready(1) == 1
    assert made.replicas[1].attempt == 1


def test_the_ranks_meet_at_another_port_at_each_attempt() -> None:
    made = group(4, 4)
    made.replicas[1] = replace(made.replicas[1], restart_requested=True)
    made.settle()
    ports = [action.rendezvous_port for action in made.done if isinstance(action, StartReplica)]
    assert ports == [21000, 21001]


def test_two_groups_with_one_head_node_meet_at_different_ports() -> None:
    made = world(8, 8)
    made.add_model(2, profile(cards=4, nodes=2))
    made.settle()
    starts = [action for action in made.done if isinstance(action, StartReplica)]
    heads = {(start.placement.head.node, start.rendezvous_port) for start in starts}
    assert len(heads) == 2
    assert made.ready(1) == 2


# -- how many ----------------------------------------------------------------------------------------------------------


def test_scaling_down_takes_what_is_not_ready_then_the_youngest_then_what_frees_the_largest_domain() -> None:
    made = world(2, 8, 1)
    made.add_model(4, profile())
    made.tick()
    made.settle()
    assert made.ready(1) == 4  # all of one age
    made.change(1, replicas=3)
    (remove,) = [action for action in made.decide() if isinstance(action, RemoveReplica)]
    sizes = {pk: made.snapshot() and len(made.nodes[shard.node].gpus) for pk, shard in made.shards.items()}
    (shard,) = [pk for pk, owner in made.owner.items() if owner == remove.replica]
    assert sizes[shard] == max(sizes.values())
    young = max(made.replicas)
    made.replicas[young] = replace(made.replicas[young], created_at=made.now)
    (remove,) = [action for action in made.decide() if isinstance(action, RemoveReplica)]
    assert remove.replica == young
    failed = min(made.owner, key=made.owner.__getitem__)
    made.move(failed, ShardState.FAILED)
    (remove,) = [action for action in made.decide() if isinstance(action, RemoveReplica)]
    assert remove.replica == made.owner[failed]


def test_scaling_down_leaves_spread_copies_spread() -> None:
    for order in ([0, 1, 2, 3], [0, 2, 1, 3], [3, 1, 2, 0]):
        made = serving(2, 2, copies=4, arrangement=Arrangement.SPREAD)
        for age, pk in enumerate(made.replicas):
            older = timedelta(hours=order[age])
            made.replicas[pk] = replace(made.replicas[pk], created_at=made.replicas[pk].created_at - older)
        made.change(1, replicas=2)
        made.settle()
        assert where(made) == [1, 1]


def test_scaling_down_lets_requests_end() -> None:
    made = world(2)
    made.add_model(2, profile(drain_timeout_seconds=300))
    made.settle()
    made.change(1, replicas=1)
    made.tick()
    (drain,) = [action for action in made.done if isinstance(action, DrainShard)]
    assert drain.deadline_at == made.now + timedelta(seconds=300)
    assert made.tick() == ()  # it waits
    made.now += timedelta(seconds=331)
    assert kinds(made.tick()) == ["StopShard"]  # its agent did not


def test_a_preferred_replica_is_placed_first_and_takes_the_cards_of_lesser_ones() -> None:
    made = world(1)
    made.add_model(1, profile())
    made.settle()
    made.add_model(1, profile(priority=5, preempts=True))
    made.settle()
    assert (made.ready(1), made.ready(2)) == (0, 1)


# -- stops and restarts ------------------------------------------------------------------------------------------------


def test_a_drain_of_one_replica_ends_at_its_deadline() -> None:
    made = world(1)
    made.add_model(1, profile())
    made.settle()
    until = made.now + timedelta(seconds=60)
    made.replicas[1] = replace(made.replicas[1], wish=ReplicaWish.STOP, drain_deadline_at=until)
    assert kinds(made.tick()) == ["DrainShard"]
    assert made.tick() == ()
    made.now = until
    assert kinds(made.tick()) == ["StopShard"]  # the deadline forces it
    made.obey()
    assert made.state(1) is ReplicaState.STOPPED
    assert made.tick() == ()


def test_a_drained_restart_starts_the_next_attempt() -> None:
    made = world(1)
    made.add_model(1, profile())
    made.settle()
    until = made.now + timedelta(seconds=60)
    made.replicas[1] = replace(made.replicas[1], restart_requested=True, drain_deadline_at=until)
    made.settle()
    assert made.replicas[1].attempt == 2
    assert made.ready(1) == 1


# -- leaving nodes -----------------------------------------------------------------------------------------------------


def test_a_drained_node_is_left_when_the_replacement_is_ready() -> None:
    made = world(1, 1)
    made.add_model(1, profile())
    made.settle()
    (node,) = {shard.node for shard in made.shards.values()}
    made.leaving[node] = made.now + timedelta(hours=1)
    while made.leaving:
        made.tick()
        assert made.ready(1) >= 1  # never below what was there
        made.obey()
        made.now += timedelta(seconds=1)
    assert NodeDrained(node=node) in made.done
    assert {made.shards[pk].node for pk in made.claims.values()} == {3 - node}
    assert not [action for action in made.done if isinstance(action, StopShard)]


def test_without_room_elsewhere_it_serves_until_the_deadline() -> None:
    made = world(1)
    made.add_model(1, profile())
    made.settle()
    made.leaving[1] = made.now + timedelta(minutes=10)
    assert made.tick() == ()
    made.now += timedelta(minutes=10)
    assert kinds(made.tick()) == ["StopShard"]
    made.settle()
    assert made.ready(1) == 0
    assert not made.leaving


def test_with_room_for_one_of_two_one_replacement_is_made() -> None:
    made = world(2, 1)
    made.add_model(2, profile(arrangement="pack"))  # type: ignore[arg-type]
    made.nodes[2] = replace(made.nodes[2], schedulable=False)
    made.settle()
    made.nodes[2] = replace(made.nodes[2], schedulable=True)
    made.leaving[1] = made.now + timedelta(hours=1)
    made.settle()
    assert len([action for action in made.done if isinstance(action, CreateReplica) and action.replaces]) == 1
    assert made.ready(1) == 2


def test_a_cancelled_drain_takes_the_replacement_back() -> None:
    made = world(1, 1)
    made.add_model(1, profile())
    made.settle()
    (node,) = {shard.node for shard in made.shards.values()}
    made.leaving[node] = made.now + timedelta(hours=1)
    made.tick()
    made.tick()
    made.obey()  # the replacement loads
    del made.leaving[node]
    made.settle()
    assert len(made.replicas) == 1
    assert {made.shards[pk].node for pk in made.claims.values()} == {node}


def test_a_substitute_that_a_person_stops_makes_way_for_another() -> None:
    made = serving(1, 1, 1, copies=1)
    (home,) = {shard.node for shard in made.shards.values()}
    made.leaving[home] = deadline = made.now + timedelta(hours=1)
    made.tick()
    made.tick()
    made.obey()  # the first substitute loads
    (old, first) = made.replicas.values()
    made.replicas[first.pk] = replace(first, wish=ReplicaWish.STOP)
    made.settle()
    assert made.now < deadline
    assert not {old.pk, first.pk} & made.replicas.keys()
    assert len(made.replicas) == made.ready(1) == 1


def test_a_stopped_substitute_without_another_place_leaves_the_old_one_alone() -> None:
    made = serving(1, 1, copies=1)
    (home,) = {shard.node for shard in made.shards.values()}
    made.leaving[home] = made.now + timedelta(hours=1)
    made.tick()
    made.nodes[3 - home] = replace(made.nodes[3 - home], schedulable=False)
    (old, first) = made.replicas.values()
    made.replicas[first.pk] = replace(first, wish=ReplicaWish.STOP)
    made.settle()
    assert list(made.replicas) == [old.pk]
    assert made.ready(1) == 1


# -- rollouts ----------------------------------------------------------------------------------------------------------


def serving(*cards: int, copies: int = 2, **fields: Any) -> World:
    made = world(*cards)
    made.add_model(copies, profile(**fields))
    made.settle()
    assert made.ready(1) == copies
    return made


def roll_through(made: World, least: int) -> None:
    for _ in range(60):
        actions = made.tick()
        assert made.ready(1) >= least
        if not (made.obey() or actions):
            return
        made.now += timedelta(seconds=1)


def test_with_a_spare_card_each_replacement_is_ready_before_the_old_one_ends() -> None:
    made = serving(3)
    target = made.roll_out(1, profile(max_model_len=4096))
    roll_through(made, least=2)
    assert {replica.revision for replica in made.replicas.values()} == {target}
    assert len(made.replicas) == 2
    assert made.models[1].stable == target


def test_without_a_spare_card_one_at_a_time_is_replaced_in_place() -> None:
    made = serving(2)
    made.roll_out(1, profile(max_model_len=4096))
    roll_through(made, least=1)
    assert [each.revision for each in made.replicas.values()] == [2, 2]
    assert not [action for action in made.done if isinstance(action, CreateReplica) and action.replaces]
    assert made.models[1].stable == 2


def where(made: World) -> list[int]:
    """Live shards by node, the fewest first."""
    live = [shard.node for shard in made.shards.values() if shard.state is ShardState.READY]
    return sorted(live.count(node) for node in made.nodes)


@pytest.mark.parametrize("cards", [(3, 3), (4, 3), (2, 3), (2, 2, 3)])
def test_copies_that_were_spread_are_spread_after_a_rollout(cards: tuple[int, ...]) -> None:
    made = serving(*cards, copies=2 * len(cards), arrangement=Arrangement.SPREAD)
    assert where(made) == [2] * len(cards)
    for length in (4096, 2048, 1024):
        made.roll_out(1, profile(max_model_len=length, arrangement=Arrangement.SPREAD))
        roll_through(made, least=len(cards))
        assert where(made) == [2] * len(cards)


def test_copies_on_their_way_out_do_not_keep_new_ones_away() -> None:
    made = serving(4, 4, copies=4, arrangement=Arrangement.SPREAD)
    for pk, shard in made.shards.items():
        if shard.node == 1:
            leaver = made.replicas[made.owner[pk]]
            made.replicas[leaver.pk] = replace(leaver, wish=ReplicaWish.REMOVE)
    made.tick()
    made.tick()  # two are missed and started, while two of the first node still drain
    kept = [s.node for pk, s in made.shards.items() if made.replicas[made.owner[pk]].wish is ReplicaWish.RUN]
    assert sorted(kept) == [1, 1, 2, 2]
    assert len(made.shards) == 6


def test_a_substitute_that_lost_its_node_and_fits_nowhere_else_does_not_hold_a_rollout_up() -> None:
    made = serving(1, 1, copies=1)
    (home,) = {shard.node for shard in made.shards.values()}
    made.roll_out(1, profile(max_model_len=4096))
    for _ in range(4):  # the node is asked, the substitute is made, placed, and loads
        made.tick()
    made.lose(3 - home)
    made.settle()
    kept = [each for each in made.replicas.values() if each.wish is not ReplicaWish.REMOVE]
    assert [each.revision for each in kept] == [2]
    assert made.ready(1) == 1
    assert made.models[1].stable == 2


def test_a_failed_revision_s_substitute_ends_with_it_whatever_the_next_one_is() -> None:
    """The old replica is at no wished revision either: it is still to be replaced, but not by what failed."""
    made = serving(3)
    made.roll_out(1, profile(max_model_len=4096))
    while not any(each.revision == 2 and each.state is ReplicaState.READY for each in made.snapshot().replicas):
        made.tick()
        made.obey()  # one of two is at revision 2, and so is what is to take over from the other
    made.bad.add(made.roll_out(1, profile(max_model_len=2048)))
    failed = set[int]()
    while not failed:
        made.tick()
        made.obey()
        failed = {pk for pk, each in made.replicas.items() if each.revision == 3 and each.failure}
    made.tick()  # what the next one replaces is over
    target = made.roll_out(1, profile(max_model_len=1024))
    made.settle()
    assert not failed & made.replicas.keys()
    assert [each.revision for each in made.replicas.values()] == [target] * 2
    assert made.models[1].stable == target


def test_a_node_that_refuses_ends_the_rollout_before_anything_is_touched() -> None:
    for cards in (2, 3):
        made = serving(cards)
        made.unfit.add(made.roll_out(1, profile(max_model_len=4096)))
        before = len(made.done)
        made.settle()
        (ask, end) = made.done[before:]
        assert isinstance(ask, AskNode)
        assert isinstance(end, EndRollout)
        assert end.state is RolloutState.FAILED
        assert "unknown flag" in end.reason
        assert made.ready(1) == 2


def test_the_first_failure_in_loading_rolls_back() -> None:
    for cards, least in ((3, 2), (2, 1)):
        made = serving(cards)
        made.bad.add(made.roll_out(1, profile(max_model_len=4096)))
        roll_through(made, least=least)
        (end,) = [action for action in made.done if isinstance(action, EndRollout)]
        assert end.state is RolloutState.FAILED
        assert [each.revision for each in made.replicas.values()] == [1, 1]
        assert made.ready(1) == 2
        assert made.models[1].stable == 1


def test_a_paused_rollout_moves_nothing_more_and_a_resumed_one_goes_on() -> None:
    made = serving(2)
    made.roll_out(1, profile(max_model_len=4096))
    rollout = made.models[1].rollout
    assert rollout is not None
    made.change(1, rollout=replace(rollout, state=RolloutState.PAUSED))
    assert made.tick() == ()
    made.change(1, rollout=rollout)
    roll_through(made, least=1)
    assert made.models[1].stable == 2


def test_rolled_back_half_way_all_go_back_one_by_one() -> None:
    made = serving(2)
    made.roll_out(1, profile(max_model_len=4096))
    while not any(r.revision == 2 and made.state(r.pk) is ReplicaState.READY for r in made.replicas.values()):
        made.tick()
        made.obey()
    made.change(1, rollout=None)  # rolled back by a person
    roll_through(made, least=1)
    assert [each.revision for each in made.replicas.values()] == [1, 1]
    assert SetGoal in {type(action) for action in made.done}


def test_a_copy_that_fits_nowhere_does_not_hold_a_rollout_up() -> None:
    made = world(2)
    made.add_model(3, profile())
    made.settle()
    assert made.ready(1) == 2
    made.roll_out(1, profile(max_model_len=4096))
    roll_through(made, least=1)
    assert made.models[1].stable == 2


# -- deadlines ---------------------------------------------------------------------------------------------------------


def loading() -> tuple[World, int]:
    made = world(1)
    made.add_model(1, profile(start_timeout_seconds=600))
    made.tick()
    made.tick()
    made.obey()
    (shard,) = made.shards
    assert made.shards[shard].state is ShardState.LOADING
    return made, shard


def test_a_load_without_progress_is_given_up_and_one_with_progress_is_not() -> None:
    made, shard = loading()
    made.now += timedelta(seconds=659)
    made.shards[shard] = replace(made.shards[shard], moved_at=made.now)  # a new phase, or some per cent more
    made.now += timedelta(seconds=659)
    assert made.tick() == ()
    made.now += timedelta(seconds=1)
    (given_up,) = made.tick()
    assert isinstance(given_up, GiveUpShard)
    assert given_up.code == "start_timeout"
    assert "for 660 s without progress" in given_up.reason


def test_nothing_is_judged_of_a_silent_node() -> None:
    made, shard = loading()
    made.shards[shard] = replace(made.shards[shard], node_ready=False)
    made.now += timedelta(hours=2)
    assert made.tick() == ()


def stalled(**fields: object) -> tuple[World, int]:
    made = world(1)
    made.add_model(1, profile())
    made.settle()
    (shard,) = made.shards
    made.shards[shard] = replace(made.shards[shard], stalled_at=made.now, **fields)  # type: ignore[arg-type]
    return made, shard


def router_says(made: World, *, token: float, spoken: float = 0.0) -> None:
    """Seconds ago: a token came, and the router spoke."""
    moved, seen = (made.now - timedelta(seconds=each) for each in (token, spoken))
    made.replicas[1] = replace(made.replicas[1], flow=FlowView(in_flight=3, moved_at=moved, seen_at=seen))


@pytest.mark.parametrize("state", [ShardState.READY, ShardState.LOADING])  # the second: its agent has unrouted it
def test_what_owes_an_answer_and_gives_no_token_at_the_router_hangs(state: ShardState) -> None:
    made, shard = stalled(state=state)
    made.now += timedelta(seconds=44)
    router_says(made, token=50)
    assert made.tick() == ()
    made.now += timedelta(seconds=1)
    (given_up,) = made.tick()
    assert isinstance(given_up, GiveUpShard)
    assert (given_up.code, given_up.shard) == ("hung", shard)
    assert "no token for 51 s with 3 requests in flight" in given_up.reason
    assert made.state(1) is ReplicaState.DEGRADED  # it is not routable any more


def test_a_token_that_a_router_saw_is_proof_of_life_however_long_health_pages_fail() -> None:
    made, _ = stalled(state=ShardState.LOADING)
    for _ in range(60):
        made.now += timedelta(minutes=2)
        router_says(made, token=2)
        assert made.tick() == ()


@pytest.mark.parametrize("spoken", [None, 31])
def test_without_a_routers_word_long_silence_alone_must_do(spoken: float | None) -> None:
    made, _ = stalled(running=3)
    made.now += timedelta(seconds=599)
    if spoken:
        router_says(made, token=200, spoken=spoken)  # what it had in flight has ended
    assert made.tick() == ()
    made.now += timedelta(seconds=1)
    assert kinds(made.tick()) == ["GiveUpShard"]
