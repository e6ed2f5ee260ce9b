"""The reconciler against a database: wishes become claims, orders and explanations; asking again changes nothing."""

import datetime
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from agent_client.protocol.messages import Register, Report, ShardReport
from agent_client.protocol.states import ShardState
from fleet.domain.actions import StartReplica
from fleet.domain.states import CommandKind, CommandState, NodeStatus, ReplicaState, ReplicaWish
from fleet.models import CatalogModel, Command, Event, Gpu, GpuClaim, Lease, Listener, Node, Replica, Shard
from fleet.services import catalog, claims, nodes, operations, reconciler, reports
from fleet.services.commands import desired_for, wire_name
from fleet.services.errors import FleetError
from fleet.services.transitions import move_node

pytestmark = pytest.mark.django_db


def gpu(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H100 80GB HBM3",
        "class": "h100-sxm-80gb",
        "memory_total_mib": 81_559,
        "domain": "d0",
        "placeable": True,
        "problems": [],
        "processes": [],
        **fields,
    }


def register(
    name: str = "gpu-01", *, cards: int = 2, boot: str = "boot-1", remote: str = "127.0.0.1:1", **fields: Any
) -> nodes.Admission:
    message = Register(
        protocol=1,
        agent_version="0.1.0",
        node_id=name,
        machine_id=fields.pop("machine", f"machine-{name}"),
        boot_id=boot,
        instance_id="i",
        hostname=name,
        mgmt_addr="127.0.0.1",
        inventory=fields.pop("inventory", {"gpus": [gpu(i) for i in range(cards)]}),
        engines={"vllm": ""},
        **fields,
    )
    return nodes.register_node(message=message, remote=remote, now=timezone.now())


def ready_node(name: str = "gpu-01", **fields: Any) -> nodes.Admission:
    admission = register(name, **fields)
    nodes.verify_node(node_id=admission.node_id, session_id=admission.session_id, now=timezone.now())
    return admission


def unheard(seconds: float = 16.0) -> None:
    """So long nothing has come from any node, though somebody listened."""
    Listener.objects.get_or_create(
        name="test", defaults={"started_at": Now() - datetime.timedelta(hours=1), "seen_at": Now()}
    )
    Listener.objects.update(seen_at=Now())
    Node.objects.update(last_seen_at=Now() - datetime.timedelta(seconds=seconds))


def model(name: str = "qwen", replicas: int = 1, **profile: Any) -> None:
    data = {"engine": "vllm", "model": "org/m", **profile}
    catalog.save_entry(catalog.read_entry({"name": name, "replicas": replicas, "profile": data}), actor="t")


def tick() -> int | None:
    return reconciler.run(holder="test", now=timezone.now())


def tell(admission: nodes.Admission, shard: Shard, state: ShardState, **fields: Any) -> None:
    report = ShardReport(shard=wire_name(shard), epoch=shard.epoch, state=state, **fields)
    reports.apply_shard_status(
        node_id=admission.node_id, session_id=admission.session_id, report=report, now=timezone.now()
    )


def make_ready(admission: nodes.Admission) -> Shard:
    shard = Shard.objects.get(wanted=True, state=ShardState.ASSIGNED)
    tell(admission, shard, ShardState.READY, endpoint="http://127.0.0.1:20000", pids=(1,))
    return Shard.objects.get(pk=shard.pk)


def test_a_wish_becomes_a_claim_an_order_and_a_ready_replica() -> None:
    admission = ready_node()
    model(tensor_parallel=2)
    assert tick() == 2
    assert GpuClaim.objects.filter(released_at__isnull=True).count() == 2
    command = Command.objects.get()
    assert command.kind == CommandKind.START
    assert [item.spec.gpus for item in desired_for(admission.node_id).shards] == [("GPU-0", "GPU-1")]
    make_ready(admission)
    replica = Replica.objects.get()
    assert (replica.state, replica.endpoint) == (ReplicaState.READY, "http://127.0.0.1:20000")
    assert tick() == 0


def test_the_record_of_an_attempt_stays_with_the_first_and_the_latest_failure() -> None:
    admission = ready_node()
    model()
    for number in (1, 2, 3):
        reconciler.run(holder="test", now=timezone.now() + datetime.timedelta(hours=number))
        shard = Shard.objects.get(wanted=True, state=ShardState.ASSIGNED)
        tell(admission, shard, ShardState.FAILED, code="exited", record={"argv": [f"try {number}"]})
        tell(admission, shard, ShardState.FAILED, code="exited", record={"argv": ["said again"]})
    replica = Replica.objects.get()
    assert replica.first_failure["record"] == {"argv": ["try 1"]}
    assert replica.latest_failure["record"] == {"argv": ["try 3"]}


def test_a_tick_that_died_holds_the_lease_for_its_seconds_and_not_until_a_clock_that_was_put_back_is_there_again() -> (
    None
):
    now = timezone.now()
    expires_at = now + datetime.timedelta(seconds=reconciler.LEASE_SECONDS)
    Lease.objects.create(name="reconcile", holder="it died", expires_at=expires_at)
    assert reconciler.run(holder="next", now=now + datetime.timedelta(seconds=1)) is None
    assert reconciler.run(holder="next", now=now - datetime.timedelta(hours=1)) is not None


def test_without_a_profile_there_is_nothing_to_do() -> None:
    ready_node()
    entry = catalog.read_entry({"name": "out", "endpoints": [{"url": "http://10.0.0.5:8000"}]})
    catalog.save_entry(entry, actor="t")
    assert tick() == 0


def test_a_replica_that_fits_nowhere_says_why_once() -> None:
    ready_node(cards=1)
    model(tensor_parallel=4)
    tick()
    replica = Replica.objects.get()
    assert replica.state == ReplicaState.PENDING
    assert "gpu-01 has 1 free h100-sxm-80gb, 4 needed" in replica.reason
    tick()
    assert Event.objects.filter(kind="replica_unplaced").count() == 1


def test_a_reason_with_other_figures_is_shown_but_is_no_news() -> None:
    """A node that is silent for 40 s, 45 s, 50 s … would fill the history."""
    ready_node()
    ready_node("gpu-02")
    Node.objects.update(status=NodeStatus.UNREACHABLE)
    model()
    for seconds in (40, 45, 50):
        Node.objects.update(last_seen_at=timezone.now() - datetime.timedelta(seconds=seconds))
        tick()
        assert f"silent for {seconds} s" in Replica.objects.get().reason
    assert Event.objects.filter(kind="replica_unplaced").count() == 1
    Node.objects.filter(name="gpu-02").update(status=NodeStatus.READY, schedulable=False)
    tick()
    assert "gpu-02 is cordoned" in Event.objects.filter(kind="replica_unplaced").latest("pk").text


def test_the_database_refuses_a_second_live_claim() -> None:
    admission = ready_node(cards=1)
    model()
    tick()
    shard = Shard.objects.get()
    with pytest.raises(FleetError, match="another shard holds"):
        claims.claim(shard, Gpu.objects.values_list("pk", flat=True))
    with pytest.raises(IntegrityError), transaction.atomic():
        GpuClaim.objects.create(gpu=Gpu.objects.get(), shard=shard)
    assert admission.node_id == shard.node_id


@pytest.mark.parametrize("what", ["node", "card", "silence"])
def test_nothing_is_started_where_something_came_in_between(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick decides on what it has read; what was shut since takes nothing new."""
    node = ready_node(cards=1)
    model()
    decide = reconciler._decide

    def and_then(*given: Any, **more: Any) -> Any:
        actions = decide(*given, **more)
        if not any(isinstance(action, StartReplica) for action in actions):
            return actions
        row = Node.objects.get(pk=node.node_id)
        match what:
            case "node":
                operations.cordon_node(node=row, reason="", actor="t")
            case "card":
                operations.cordon_gpu(gpu=Gpu.objects.get(), cordoned=True, reason="", actor="t")
            case "silence":
                move_node(row.pk, NodeStatus.UNREACHABLE)
        return actions

    monkeypatch.setattr(reconciler, "_decide", and_then)
    tick()
    assert not Shard.objects.exists()
    assert not GpuClaim.objects.exists()
    assert (Replica.objects.get().state, Replica.objects.get().attempt) == (ReplicaState.PENDING, 0)


def test_a_crash_waits_counts_and_starts_the_next_attempt() -> None:
    admission = ready_node()
    model()
    tick()
    shard = Shard.objects.get()
    tell(admission, shard, ShardState.FAILED, code="exited", detail="exited with code 3", exit_code=3, tail=("boom",))
    replica = Replica.objects.get()
    assert (replica.state, replica.crash_count) == (ReplicaState.FAILED, 1)
    assert replica.latest_failure["tail"] == ["boom"]
    assert tick() == 0  # it waits
    later = timezone.now() + datetime.timedelta(seconds=11)
    assert reconciler.run(holder="test", now=later) == 1
    replica.refresh_from_db()
    assert replica.attempt == 2
    tell(admission, shard, ShardState.READY, endpoint="http://x:1")  # late words of the old attempt
    replica.refresh_from_db()
    assert replica.state == ReplicaState.STARTING


def test_a_restart_stops_first_and_starts_again() -> None:
    admission = ready_node()
    model()
    tick()
    shard = make_ready(admission)
    operations.restart_replica(replica=Replica.objects.get(), actor="t", now=timezone.now())
    tick()
    stop = Command.objects.filter(kind=CommandKind.STOP).get()
    assert stop.shard == shard
    tell(admission, shard, ShardState.STOPPED)
    tick()
    assert Replica.objects.get().attempt == 2


def test_scaling_down_removes_the_replica_that_is_not_ready() -> None:
    admission = ready_node()
    model()
    tick()
    make_ready(admission)
    model(replicas=2)
    tick()
    model(replicas=1)
    tick()
    gone = Replica.objects.get(wish=ReplicaWish.REMOVE)
    assert gone.number == 2
    tell(admission, Shard.objects.get(replica=gone), ShardState.STOPPED)
    tick()
    assert Replica.objects.get().number == 1


def test_a_returning_node_keeps_what_was_not_replaced() -> None:
    from fleet.domain.liveness import NodeSilence
    from fleet.services import liveness

    admission = ready_node()
    model()
    tick()
    shard = make_ready(admission)
    silence = NodeSilence(pk=admission.node_id, name="gpu-01", status=NodeStatus.READY, silent_seconds=400)
    liveness._unreachable(silence)
    liveness._lost(silence, timezone.now())
    replica = Replica.objects.get()
    assert (replica.state, replica.code) == (ReplicaState.LOST, "node_lost")
    tick()
    replica.refresh_from_db()
    assert replica.state == ReplicaState.PENDING  # placed nowhere else, and the explanation says why
    assert "gpu-01 is lost" in replica.reason
    assert not GpuClaim.objects.filter(released_at__isnull=True).exists()
    report = ShardReport(shard=wire_name(shard), epoch=1, state=ShardState.READY, endpoint="http://127.0.0.1:20000")
    again = register(node_uid=admission.node_uid, credential=admission.credential, shards=(report,))
    replica.refresh_from_db()
    assert (replica.state, replica.attempt) == (ReplicaState.READY, 1)
    assert GpuClaim.objects.filter(released_at__isnull=True).count() == 1
    assert [item.epoch for item in again.desired.shards] == [1]


def test_a_reboot_means_that_all_engines_are_dead() -> None:
    """Failures 5."""
    admission = ready_node()
    model()
    tick()
    make_ready(admission)
    unheard()
    register(node_uid=admission.node_uid, credential=admission.credential, boot="boot-2")
    assert Shard.objects.get().code == "node_rebooted"
    assert not GpuClaim.objects.filter(released_at__isnull=True).exists()


def test_a_cloned_identity_quarantines_both() -> None:
    """Failures 6."""
    admission = ready_node()
    same = {"node_uid": admission.node_uid, "credential": admission.credential}
    unheard()
    register(boot="boot-2", **same)
    with pytest.raises(FleetError) as refused:
        register(boot="boot-1", **same)
    assert refused.value.code == "quarantined"
    assert Node.objects.get().status == NodeStatus.QUARANTINED
    with pytest.raises(FleetError):
        register(boot="boot-2", **same)


def test_a_name_in_use_is_refused_and_an_unknown_identity_told_what_to_do() -> None:
    ready_node()
    with pytest.raises(FleetError, match="cannot register gpu-01 from") as taken:
        register(machine="another")
    assert taken.value.code == "node_id_taken"
    with pytest.raises(FleetError) as unknown:
        register("gpu-02", node_uid="11111111-1111-1111-1111-111111111111")
    assert "agent_client join" in unknown.value.hint


def test_a_card_that_goes_is_told_and_the_others_stay() -> None:
    admission = ready_node()
    report = Report(inventory={"gpus": [gpu(1)]}, inventory_fingerprint="new")
    reports.apply_whole_report(
        node_id=admission.node_id, session_id=admission.session_id, report=report, now=timezone.now()
    )
    assert Gpu.objects.get(uuid="GPU-0").present is False
    assert "GPU-0" in Event.objects.get(kind="gpu_gone").text
    model(replicas=1)
    tick()
    assert GpuClaim.objects.get().gpu.uuid == "GPU-1"


def test_a_deleted_model_goes_with_its_last_replica() -> None:
    admission = ready_node()
    model()
    tick()
    shard = make_ready(admission)
    catalog.delete_model("qwen", actor="ann")
    assert catalog.export_catalog() == {"models": []}  # it is no longer wished for
    tick()
    assert CatalogModel.objects.get().leaving
    tell(admission, shard, ShardState.STOPPED)
    tick()
    assert not CatalogModel.objects.exists()
    assert Event.objects.filter(kind="model_deleted").exists()


def test_a_model_that_never_fitted_is_deleted_at_once() -> None:
    model(replicas=2)
    tick()
    assert set(Replica.objects.values_list("state", "attempt")) == {(ReplicaState.PENDING, 0)}
    catalog.delete_model("qwen", actor="ann")
    assert not CatalogModel.objects.exists()
    assert not Replica.objects.exists()


def test_a_leaving_model_that_is_wished_again_stays() -> None:
    admission = ready_node()
    model()
    tick()
    shard = make_ready(admission)
    catalog.delete_model("qwen", actor="ann")
    model()
    tick()
    tell(admission, shard, ShardState.STOPPED)
    tick()
    tick()
    assert not CatalogModel.objects.get().leaving
    assert Replica.objects.get().number == 2


def report_cards(admission: nodes.Admission, cards: list[dict[str, Any]], fingerprint: str) -> None:
    message = Report(shards=(), inventory={"gpus": cards}, inventory_fingerprint=fingerprint)
    of_whom = {"node_id": admission.node_id, "session_id": admission.session_id}
    reports.apply_whole_report(**of_whom, report=message, now=timezone.now())


def test_a_lost_card_keeps_its_name_and_the_event_names_it() -> None:
    admission = ready_node(cards=2)
    cards = [gpu(0, bus="0000:18:00.0"), gpu(1, bus="0000:29:00.0")]
    report_cards(admission, cards, "a")
    lost = [{"code": "lost", "severity": "unplaceable", "text": "the driver has lost the card", "hint": ""}]
    silent = {**cards[1], "uuid": None, "name": None, "class": None, "placeable": False, "problems": lost}
    report_cards(admission, [cards[0], silent], "b")
    row = Gpu.objects.get(uuid="GPU-1")
    assert (row.present, row.placeable, row.gpu_class) == (True, False, "h100-sxm-80gb")
    assert Gpu.objects.get(uuid="GPU-0").placeable
    (event,) = Event.objects.filter(kind="gpu_problem")
    assert event.text.startswith("gpu-01 GPU 1 (h100-sxm-80gb): the driver has lost the card")
    report_cards(admission, cards, "c")
    assert Gpu.objects.get(uuid="GPU-1").placeable
    assert Event.objects.filter(kind="gpu_problem_gone", text__contains="GPU 1").exists()
    assert Gpu.objects.count() == 2


def test_a_desktop_is_in_nobody_s_way_and_a_stranger_is() -> None:
    admission = ready_node(cards=2)
    desktop = {"pid": 9, "name": "Xorg", "memory_mib": 4, "foreign": False}
    stranger = {"pid": 10, "name": "python", "memory_mib": 900, "foreign": True}
    report_cards(admission, [gpu(0, processes=[desktop]), gpu(1, processes=[stranger])], "a")
    model(gpu_class="h100-sxm-80gb", replicas=2)
    tick()
    tick()
    assert GpuClaim.objects.get().gpu.uuid == "GPU-0"
    stuck = Replica.objects.get(number=2)
    assert "GPU 1 is used by python (pid 10)" in stuck.explanation["text"]


def test_a_failed_replica_that_is_to_stop_is_stopped_at_once() -> None:
    """None of its shards is left to report anything."""
    admission = ready_node()
    model()
    tick()
    shard = Shard.objects.select_related("replica").get()
    failed = ShardReport(shard=wire_name(shard), epoch=shard.epoch, state=ShardState.FAILED, detail="it broke")
    reports.apply_shard_status(
        node_id=admission.node_id, session_id=admission.session_id, report=failed, now=timezone.now()
    )
    assert Replica.objects.get().state == ReplicaState.FAILED
    operations.set_wish(replica=Replica.objects.get(), wish=ReplicaWish.STOP, actor="test", now=timezone.now())
    assert Replica.objects.get().state == ReplicaState.STOPPED


def test_an_order_ends_with_its_shard() -> None:
    """Delivered later, it would start an engine on cards that are another's by then."""
    admission = ready_node()
    model()
    tick()
    tell(admission, Shard.objects.get(), ShardState.FAILED, detail="it broke")
    assert Command.objects.get().state == CommandState.DROPPED


def test_an_order_that_a_rebooted_node_never_got_is_still_to_be_carried_out() -> None:
    admission = ready_node()
    model()
    tick()
    unheard()
    register(node_uid=admission.node_uid, credential=admission.credential, boot="boot-2")
    assert Shard.objects.get().state == ShardState.ASSIGNED
    assert Command.objects.get().state == CommandState.OPEN


def test_an_engine_that_runs_under_an_ended_row_asks_for_a_sync() -> None:
    admission = ready_node()
    model()
    tick()
    shard = Shard.objects.get()
    tell(admission, shard, ShardState.FAILED, detail="it broke")
    report = ShardReport(shard=wire_name(shard), epoch=shard.epoch, state=ShardState.LOADING)
    told = reports.apply_shard_status(
        node_id=admission.node_id, session_id=admission.session_id, report=report, now=timezone.now()
    )
    assert told
    assert Shard.objects.get().state == ShardState.FAILED


def test_a_shard_whose_stop_was_answered_and_whose_end_was_never_told_ends_with_the_next_whole_report() -> None:
    admission = ready_node()
    model()
    tick()
    operations.set_wish(replica=Replica.objects.get(), wish=ReplicaWish.STOP, actor="t", now=timezone.now())
    tick()
    whole = {"node_id": admission.node_id, "session_id": admission.session_id, "report": Report(shards=())}
    reports.apply_whole_report(**whole, now=timezone.now())
    assert Shard.objects.get().state == ShardState.ASSIGNED  # the stop is still to be delivered
    stop = Command.objects.get(kind=CommandKind.STOP)
    reports.apply_answer(
        command_id=stop.pk,
        node_id=admission.node_id,
        session_id=admission.session_id,
        accepted=True,
        code="",
        detail="",
        now=timezone.now(),
    )
    reports.apply_whole_report(**whole, now=timezone.now())
    assert Shard.objects.get().state == ShardState.STOPPED
    assert Replica.objects.get().state == ReplicaState.STOPPED
    assert not GpuClaim.objects.filter(released_at__isnull=True).exists()
