"""Nodes that come and go get nothing new for a growing, bounded time; replicas that loop say so."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agent_client.protocol.messages import Report
from agent_client.protocol.states import ShardState
from fleet.domain.states import NodeStatus, ReplicaState
from fleet.models import Event, Listener, Node, Replica, Shard
from fleet.services import heartbeats, liveness, operations, reports
from fleet.services.heartbeats import Beat
from fleet.services.nodes import Admission
from fleet.services.transitions import move_node
from tests.fleet.test_reconciler import make_ready, model, ready_node, tell, tick

pytestmark = pytest.mark.django_db


def comes_back(admission: Admission, times: int = 1) -> Node:
    for _ in range(times):
        move_node(admission.node_id, NodeStatus.UNREACHABLE)
        beats = {admission.session_id: Beat(desired_revision=0, inventory_stale_seconds=None)}
        heartbeats.flush(listener="web-1", first=True, beats=beats)
    return Node.objects.get(pk=admission.node_id)


def damped_for(node: Node) -> float:
    assert node.damped_until is not None
    return (node.damped_until - timezone.now()).total_seconds()


def test_the_second_return_within_the_hour_damps_for_a_minute_and_the_next_for_two() -> None:
    admission = ready_node()
    assert comes_back(admission).damped_until is None
    assert 50 < damped_for(comes_back(admission)) <= 60
    assert 110 < damped_for(comes_back(admission)) <= 120
    assert 1700 < damped_for(comes_back(admission, 9)) <= 1800
    text = Event.objects.filter(kind="node_flaps").order_by("pk").values_list("text", flat=True)[1]
    assert text == (
        "gpu-01 came back for the 3. time, each within an hour of the one before: nothing new is placed there for 120 s"
    )
    Node.objects.update(returned_at=timezone.now() - timedelta(hours=2))
    assert comes_back(admission).damped_until is None


def news() -> list[str]:
    return list(
        Event.objects.filter(kind__in=["node_ready", "node_flaps"]).order_by("pk").values_list("kind", flat=True)
    )


def test_of_a_node_that_flaps_its_history_tells_ever_less_until_it_has_been_stable() -> None:
    admission = ready_node()
    joined = news()
    comes_back(admission, 17)
    assert news() == [*joined, "node_ready", *["node_flaps"] * 5]  # the 2nd, 3rd, 5th, 9th and 17th return
    Node.objects.update(damped_until=timezone.now())  # its time is over: a silence would have been told again
    comes_back(admission)
    assert news()[-1] == "node_ready"


def test_a_damped_node_that_falls_silent_again_is_no_news_and_is_lost_all_the_same() -> None:
    admission = ready_node()
    comes_back(admission, 3)
    now = timezone.now()
    Listener.objects.update(started_at=now - timedelta(hours=1), seen_at=now)
    Node.objects.update(last_seen_at=now - timedelta(seconds=400))
    liveness.run()
    assert Node.objects.get().status == NodeStatus.UNREACHABLE
    assert not Event.objects.filter(kind="node_unreachable").exists()
    liveness.run()
    assert Node.objects.get().status == NodeStatus.LOST
    assert Event.objects.filter(kind="node_lost").count() == 1
    told = len(news())
    reports.apply_whole_report(
        node_id=admission.node_id, session_id=admission.session_id, report=Report(), now=timezone.now()
    )
    assert Node.objects.get().status == NodeStatus.READY
    assert len(news()) == told + 1  # the 4th return: told, since its loss was


def test_nothing_new_is_placed_on_it_what_runs_stays_and_an_uncordon_forgives() -> None:
    admission = ready_node(cards=2)
    model()
    tick()
    make_ready(admission)
    comes_back(admission, 3)
    model(replicas=2)
    tick()
    old, new = Replica.objects.order_by("number")
    assert (old.state, old.attempt) == (ReplicaState.READY, 1)
    assert new.state == ReplicaState.PENDING
    assert "1 that come and go" in new.explanation["text"] or "comes and goes" in str(new.explanation)
    operations.uncordon_node(node=Node.objects.get(), actor="ann")
    tick()
    assert Replica.objects.get(number=2).state == ReplicaState.STARTING


def test_it_takes_work_again_when_its_time_is_over() -> None:
    admission = ready_node(cards=1)
    comes_back(admission, 2)
    model()
    tick()
    assert Replica.objects.get().state == ReplicaState.PENDING
    Node.objects.update(damped_until=timezone.now() - timedelta(seconds=1))
    tick()
    assert Replica.objects.get().state == ReplicaState.STARTING


def test_returns_from_an_outage_of_most_of_the_fleet_are_not_the_nodes_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = ready_node()
    monkeypatch.setattr("fleet.services.returns.eviction_held", lambda: "evictions are held")
    assert (comes_back(admission, 4).returns, Node.objects.get().damped_until) == (0, None)
    assert liveness.eviction_held() == ""


def test_a_short_time_of_ready_forgives_no_crash_and_a_loop_says_when_it_tries_again() -> None:
    admission = ready_node(cards=1)
    model()
    now = timezone.now()
    for count in range(1, 5):
        tick()
        Replica.objects.update(next_try_at=None)
        tick()
        make_ready(admission)
        Replica.objects.update(ready_at=now - timedelta(minutes=9))  # nearly the ten minutes that would forgive
        tell(admission, Shard.objects.get(state=ShardState.READY), ShardState.FAILED, code="exited", detail="it died")
        assert Replica.objects.get().crash_count == count
    texts = list(Event.objects.filter(kind="replica_loops").order_by("pk").values_list("text", flat=True))
    assert len(texts) == 2
    assert texts[0].startswith("qwen/1 failed 3 times without 10 min of ready in between: next try in ")
    pauses = [float(text.rpartition("next try in ")[2].removesuffix(" s")) for text in texts]
    assert 32 <= pauses[0] <= 40
    assert 64 <= pauses[1] <= 80
