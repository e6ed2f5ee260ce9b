"""Rows of the failure catalogue that the control plane alone decides: loops of crashes, reboots."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from agent_client.protocol.messages import ShardReport
from agent_client.protocol.states import ShardState
from fleet.domain import backoff
from fleet.domain.states import ReplicaState
from fleet.models import Event, Node, Replica, Shard
from fleet.services import nodes, reconciler
from fleet.services.commands import wire_name
from fleet.services.replicas import LOOP, recompute
from tests.fleet.test_reconciler import make_ready, model, ready_node, register, tell, tick, unheard

pytestmark = pytest.mark.django_db


def crash(admission: nodes.Admission, now: datetime, **fields: Any) -> Replica:
    """The newest attempt ends; the replica as it then is, before its next try."""
    shard = Shard.objects.order_by("-epoch")[0]
    tell(admission, shard, ShardState.FAILED, **{"code": "exited", "detail": f"end {shard.epoch}", **fields})
    recompute(shard.replica_id, now=now)
    return Replica.objects.get()


def test_a_loop_of_crashes_waits_longer_and_longer_and_is_told_as_one() -> None:
    """Failures 34: 10 s x 2 up to 300 s with jitter, first and latest failure kept, forgiven after 10 good minutes."""
    admission = ready_node()
    model()
    now = timezone.now()
    tick()
    for count in range(1, 9):
        replica = crash(admission, now)
        assert (replica.state, replica.crash_count) == (ReplicaState.FAILED, count)
        assert replica.next_try_at
        wait = (replica.next_try_at - timezone.now()).total_seconds()
        longest = min(10 * 2 ** (count - 1), 300)
        assert 0.8 * longest - 2 <= wait <= longest
        assert replica.first_failure["reason"] == "end 1"
        assert replica.latest_failure["reason"] == f"end {count}"
        assert Event.objects.filter(kind="replica_loops").exists() == (count >= LOOP)
        assert reconciler.run(holder="test", now=timezone.now()) == 0
        assert reconciler.run(holder="test", now=replica.next_try_at + timedelta(seconds=1))
    make_ready(admission)
    Replica.objects.update(ready_at=timezone.now() - backoff.RESET_AFTER)
    assert crash(admission, timezone.now()).crash_count == 1
    assert Replica.objects.get().first_failure["reason"] == "end 9"


def test_what_only_this_node_lacks_is_tried_on_another_and_the_rest_where_it_was() -> None:
    """Failures 34: another node once, where the reason is the node's own."""
    for code, moves in (("model_missing", True), ("heads-not-divisible", False)):
        admissions = {each.node_id: each for each in (ready_node(f"{code}-{n}") for n in (1, 2))}
        name = f"m-{len(code)}"
        model(name)
        tick()
        first = Shard.objects.get(replica__model__name=name)
        tell(admissions[first.node_id], first, ShardState.FAILED, code=code, detail="no such file")
        later = timezone.now() + timedelta(seconds=11)
        reconciler.run(holder="test", now=later)
        second = Shard.objects.get(replica__model__name=name, epoch=2)
        assert (second.node_id != first.node_id) is moves
        Node.objects.update(schedulable=False)


def test_a_reboot_costs_no_wait_and_one_reboot_after_another_does() -> None:
    """Failures 5."""
    admission = ready_node()
    same = {"node_uid": admission.node_uid, "credential": admission.credential}
    model()
    tick()
    shard = make_ready(admission)
    found_gone = ShardReport(shard=wire_name(shard), epoch=1, state=ShardState.FAILED, code="lost_track")
    unheard()
    admission = register(boot="boot-2", shards=(found_gone,), **same)
    tell(admission, shard, ShardState.FAILED, code="lost_track")  # what the agent makes of it comes once more
    assert Shard.objects.get().code == "node_rebooted"
    replica = Replica.objects.get()
    assert (replica.state, replica.next_try_at) == (ReplicaState.PENDING, None)
    nodes.verify_node(node_id=admission.node_id, session_id=admission.session_id, now=timezone.now())
    assert tick()
    assert Replica.objects.get().attempt == 2
    tell(admission, Shard.objects.get(epoch=2), ShardState.LOADING)
    unheard()
    register(boot="boot-3", **same)
    assert Replica.objects.get().next_try_at
