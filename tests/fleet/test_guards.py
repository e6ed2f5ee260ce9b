"""One outage never evicts a fleet: many silent at once, one silent for long, and what comes back."""

import uuid
from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from agent_client.protocol.messages import Report, ShardReport
from agent_client.protocol.states import ShardState
from fleet.domain.states import CommandKind, NodeStatus, ReplicaState
from fleet.models import Command, Event, GpuClaim, Listener, Node, Replica, Shard
from fleet.services import heartbeats, liveness, reports
from fleet.services.commands import desired_for, wire_name
from fleet.services.errors import FleetError
from tests.fleet.test_reconciler import model, ready_node, register, tell, tick

pytestmark = pytest.mark.django_db


def fleet(count: int) -> None:
    """Ready nodes, and a listener that has been up for an hour."""
    Node.objects.bulk_create(
        Node(name=f"n{i:02}", uid=uuid.uuid4(), status=NodeStatus.READY, last_seen_at=timezone.now())
        for i in range(count)
    )
    heartbeats.flush(listener="web-1", first=True, beats={})
    Listener.objects.update(started_at=F("started_at") - timedelta(hours=1))


def silence(*names: str) -> None:
    Node.objects.filter(name__in=names).update(last_seen_at=timezone.now() - timedelta(minutes=10))


def judge(rounds: int = 3) -> None:
    for _ in range(rounds):
        liveness.run()


@pytest.mark.parametrize("of", [20, 30])
def test_twenty_silent_at_once_are_not_evicted_and_come_back_by_themselves(of: int) -> None:
    fleet(of)
    silence(*(f"n{i:02}" for i in range(20)))
    judge()
    assert Node.objects.filter(status=NodeStatus.UNREACHABLE).count() == 20
    assert not Node.objects.filter(status=NodeStatus.LOST).exists()
    assert Event.objects.filter(kind="eviction_held").count() == 1
    assert "20 nodes are silent at once" in liveness.eviction_held()
    for node in Node.objects.filter(status=NodeStatus.UNREACHABLE):
        liveness.move_node(node.pk, NodeStatus.READY)
    Node.objects.update(last_seen_at=timezone.now())
    judge()
    assert Node.objects.filter(status=NodeStatus.READY).count() == of
    assert liveness.eviction_held() == ""
    assert not Event.objects.filter(kind="node_lost").exists()


def test_one_of_twenty_is_lost_and_its_replica_placed_elsewhere() -> None:
    fleet(18)
    first = ready_node("gpu-01")
    model()
    tick()
    tell(first, Shard.objects.get(), ShardState.READY, endpoint="http://127.0.0.1:20000")
    ready_node("gpu-02")
    silence("gpu-01")
    judge()
    assert Node.objects.get(name="gpu-01").status == NodeStatus.LOST
    tick()
    assert Shard.objects.get(wanted=True).node.name == "gpu-02"


def test_an_operator_may_accept_the_loss_and_a_node_that_is_heard_again_is_not_meant() -> None:
    fleet(20)
    with pytest.raises(FleetError, match="no eviction is held"):
        liveness.accept_losses(actor="ann")
    silence(*(f"n{i:02}" for i in range(10)))
    judge()
    assert len(liveness.accept_losses(actor="ann")) == 10
    liveness.move_node(Node.objects.get(name="n00").pk, NodeStatus.READY)
    judge(1)
    lost = Node.objects.filter(status=NodeStatus.LOST)
    assert lost.count() == 9
    assert not Node.objects.get(name="n00").loss_accepted


def test_what_was_replaced_is_stopped_and_its_card_kept_from_others_until_it_has_ended() -> None:
    first = ready_node("gpu-01", cards=1)
    model()
    tick()
    old = Shard.objects.get()
    tell(first, old, ShardState.READY, endpoint="http://127.0.0.1:20000")
    silence_ = liveness.NodeSilence(pk=first.node_id, name="gpu-01", status=NodeStatus.READY, silent_seconds=400)
    liveness._unreachable(silence_)
    liveness._lost(silence_, timezone.now())
    second = ready_node("gpu-02", cards=1)
    tick()
    new = Shard.objects.get(wanted=True)
    tell(second, new, ShardState.READY, endpoint="http://127.0.0.1:20001")
    alive = ShardReport(shard=wire_name(old), epoch=1, state=ShardState.READY, endpoint="http://127.0.0.1:20000")
    back = register("gpu-01", cards=1, node_uid=first.node_uid, credential=first.credential, shards=(alive,))
    assert back.desired.shards == ()
    assert Command.objects.get(shard=old, kind=CommandKind.STOP).node_id == first.node_id
    assert Node.objects.filter(pk=first.node_id).update(status=NodeStatus.READY)
    model("other")
    tick()
    assert Replica.objects.get(model__name="other").state == ReplicaState.PENDING  # that card is not free yet
    report = Report(shards=(alive,))
    again = {"node_id": back.node_id, "session_id": back.session_id, "now": timezone.now()}
    assert reports.apply_whole_report(report=report, **again)  # a sync is due
    assert Command.objects.filter(shard=old, kind=CommandKind.STOP).count() == 1
    tell(back, old, ShardState.STOPPED)
    tick()
    assert Shard.objects.get(replica__model__name="other").node_id == first.node_id
    assert GpuClaim.objects.filter(released_at__isnull=True).count() == 2
    assert Replica.objects.get(model__name="qwen").state == ReplicaState.READY
    assert [item.epoch for item in desired_for(second.node_id).shards] == [2]
