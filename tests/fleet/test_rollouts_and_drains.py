"""Rollouts, drains, groups and verdicts against a database: what people ask for, and what agents say."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent_client.protocol.messages import Checked, ShardReport, ToldProblem
from agent_client.protocol.states import ShardState
from fleet.domain.states import CheckState, CommandKind, ReplicaState, ReplicaWish, RolloutState
from fleet.endpoints import FlowWord, hear_flows, published
from fleet.models import (
    CatalogModel,
    Command,
    DryCheck,
    Event,
    Flow,
    Gpu,
    Listener,
    Node,
    ProfileRevision,
    Replica,
    Rollout,
    Shard,
)
from fleet.services import catalog, commands, nodes, operations, reconciler, reports, rollouts
from fleet.services.commands import desired_for, wire_name
from fleet.services.errors import FleetError
from fleet.wishes import load_wishes
from tests.fleet.test_catalog_and_pages import api as api  # the fixture
from tests.fleet.test_explain import explain
from tests.fleet.test_reconciler import make_ready, model, ready_node, tell, tick

pytestmark = pytest.mark.django_db


def serving(*, cards: int = 2, **profile: Any) -> nodes.Admission:
    admission = ready_node(cards=cards)
    model(**profile)
    tick()
    make_ready(admission)
    return admission


def answer(admission: nodes.Admission, code: str = "", detail: str = "") -> None:
    check = DryCheck.objects.get(state=CheckState.OPEN)
    told = Checked(check=check.pk, code=code, detail=detail)
    of = {"node_id": admission.node_id, "session_id": admission.session_id}
    rollouts.answer_check(**of, answer=told, now=timezone.now())


def go_over(admission: nodes.Admission) -> None:
    """The one replica there is is replaced in place, as its rollout wishes."""
    tick()
    answer(admission)
    tick()
    tell(admission, Shard.objects.get(), ShardState.STOPPED)
    tick()
    make_ready(admission)
    tick()


def heard() -> None:
    """Something has listened to agents for long: only then is anything late."""
    now = timezone.now()
    Listener.objects.create(name="test", started_at=now - timedelta(hours=1), seen_at=now)


# -- rollouts ----------------------------------------------------------------------------------------------------------


def test_a_changed_profile_is_put_to_the_node_first_and_surges_when_there_is_room() -> None:
    admission = serving()
    model(max_model_len=4096)
    tick()
    message = rollouts.check_message(DryCheck.objects.get())
    assert message.spec.profile["max_model_len"] == 4096
    assert message.spec.gpus == ("GPU-1",)
    assert message.spec.engine_key is None
    assert Shard.objects.count() == 1  # nothing was touched
    answer(admission)
    tick()
    new = Shard.objects.get(replica__number=2)
    tell(admission, new, ShardState.READY, endpoint="http://127.0.0.1:20001")
    tick()
    old = Shard.objects.get(replica__number=1)
    assert (old.draining, Replica.objects.get(number=1).wish) == (True, ReplicaWish.REMOVE)
    tell(admission, old, ShardState.STOPPED)
    tick()
    assert Rollout.objects.get().state == RolloutState.DONE
    assert CatalogModel.objects.get().stable_revision == 2
    assert Replica.objects.get().state == ReplicaState.READY


def test_a_refusal_fails_the_rollout_and_it_can_be_tried_again() -> None:
    admission = serving()
    model(extra_args=["--max-num-seqs", "8"])
    tick()
    answer(admission, "unknown_flag", "cannot start qwen at revision 2: vllm 0.32 does not know --x")
    tick()
    rollout = Rollout.objects.get()
    assert rollout.state == RolloutState.FAILED
    assert "gpu-01: cannot start qwen at revision 2" in rollout.reason
    assert Replica.objects.get().state == ReplicaState.READY
    assert tick() == 0
    rollouts.resume(model=CatalogModel.objects.get(), actor="ann")
    tick()
    assert DryCheck.objects.filter(state=CheckState.OPEN).count() == 1


def test_a_failed_rollout_is_told_wherever_its_model_is(admin_client: Client) -> None:
    admission = serving()
    model(extra_args=["--max-num-seqs", "8"])
    tick()
    answer(admission, "unknown_flag", "cannot start qwen at revision 2: vllm 0.32 does not know --x")
    tick()
    assert "revision 2 is wished, revision 1 runs; the rollout to it: failed, gpu-01: cannot" in explain("qwen")
    home = admin_client.get("/admin/").content.decode()
    assert "One thing needs you." in home
    assert "qwen: revision 2 was taken back" in home
    page = admin_client.get(f"/admin/fleet/catalogmodel/{CatalogModel.objects.get().pk}/change/").content.decode()
    assert "1 of 1 copy ready, at revision 1; revision 2 is wished." in page
    model()  # as before
    tick()
    assert "All is well" in admin_client.get("/admin/").content.decode()
    assert "is wished" not in explain("qwen")


def test_all_that_a_node_found_is_kept_within_bounds_and_shown(api: Client, admin_client: Client) -> None:
    admission = serving()
    model(max_model_len=4096)
    tick()
    problems = (
        ToldProblem(code="flag_unknown", text="cannot use --x: vllm has no such option", hint="did you mean --y?"),
        ToldProblem(code="model_missing", text="cannot find the <model>"),
        *(ToldProblem(code="c" * 100, text="t" * 5000, hint="h" * 5000) for _ in range(100)),
    )
    told = Checked(check=DryCheck.objects.get().pk, code="flag_unknown", detail="cannot use --x", problems=problems)
    of = {"node_id": admission.node_id, "session_id": admission.session_id}
    rollouts.answer_check(**of, answer=told, now=timezone.now())
    kept = DryCheck.objects.get().problems
    assert kept[0]["hint"] == "did you mean --y?"
    assert len(kept) < 50
    assert len(json.dumps(kept)) < 128 * 1024
    (shown,) = api.get("/api/v1/models/qwen/rollout/").json()["checks"]
    assert (shown["code"], shown["problems"]) == ("flag_unknown", kept)
    row = Rollout.objects.get()
    for url in (f"fleet/rollout/{row.pk}", f"fleet/drycheck/{DryCheck.objects.get().pk}"):
        page = admin_client.get(f"/admin/{url}/change/").content.decode()
        assert "cannot find the &lt;model&gt;" in page
        assert "did you mean --y?" in page


def test_an_answer_without_a_list_is_shown_as_its_one_sentence(api: Client, admin_client: Client) -> None:
    admission = serving()
    model(max_model_len=4096)
    tick()
    answer(admission, "unknown_flag", "cannot start it: no --x")  # an older agent
    (shown,) = api.get("/api/v1/models/qwen/rollout/").json()["checks"]
    assert shown["problems"] == [{"code": "unknown_flag", "text": "cannot start it: no --x", "hint": ""}]
    page = admin_client.get(f"/admin/fleet/rollout/{Rollout.objects.get().pk}/change/").content.decode()
    assert "cannot start it: no --x" in page


def test_what_a_rollout_waits_for_is_told_wherever_it_is_shown(api: Client, admin_client: Client) -> None:
    admission = serving(cards=1)
    model(max_model_len=4096)
    tick()
    waits = "it waits for the answer of gpu-01 whether revision 2 could run there"
    row, entry = Rollout.objects.get(), CatalogModel.objects.get()

    def told() -> list[str]:
        pages = (f"rollout/{row.pk}", f"catalogmodel/{entry.pk}")
        shown = [admin_client.get(f"/admin/fleet/{page}/change/").content.decode() for page in pages]
        return [explain("qwen"), api.get("/api/v1/models/qwen/rollout/").json()["waits_for"], *shown]

    assert all(waits[1:] in text for text in told())
    assert "has no room: 0 of 1 node fit: gpu-01 has 0 free" in told()[1]
    answer(admission)
    tick()
    tick()
    assert all("qwen/1 to end on gpu-01, before it starts at revision 2: it is drained" in text for text in told())
    rollouts.break_off(model=entry, actor="ann")
    assert told()[1] == ""


def test_without_room_the_card_of_the_old_replica_is_asked_about_and_reused() -> None:
    admission = serving(cards=1)
    model(max_model_len=4096)
    tick()
    check = DryCheck.objects.get()
    assert check.replaces == wire_name(Shard.objects.get())
    assert rollouts.check_message(check).spec.gpus == ("GPU-0",)
    rollouts.skip_checks(node_id=admission.node_id, session_id=admission.session_id, now=timezone.now())  # an old agent
    tick()
    old = Shard.objects.get()
    assert old.draining
    tell(admission, old, ShardState.STOPPED)
    tick()
    replica = Replica.objects.get()
    assert (replica.number, replica.attempt, replica.revision.number) == (1, 2, 2)


def test_what_serves_nobody_takes_a_new_revision_at_once() -> None:
    ready_node(cards=0)
    model()
    tick()
    model(max_model_len=4096)
    assert not Rollout.objects.exists()
    tick()
    assert Replica.objects.get().goal == 2


def test_numbers_and_timeouts_restart_nothing() -> None:
    serving()
    model(drain_timeout_seconds=7)
    tick()
    assert not Rollout.objects.exists()
    replica = Replica.objects.get()
    assert (replica.revision.number, replica.attempt, replica.state) == (2, 1, ReplicaState.READY)
    assert CatalogModel.objects.get().stable_revision == 2


def test_endpoints_change_without_a_rollout() -> None:
    for url in ("http://10.0.0.5:8000", "http://10.0.0.6:8000"):
        entry = catalog.read_entry({"name": "out", "endpoints": [{"url": url}]})
        catalog.save_entry(entry, actor="t")
    assert not Rollout.objects.exists()
    assert tick() == 0


def test_rollouts_are_led_by_api(api: Client) -> None:
    serving()
    assert api.post("/api/v1/models/qwen/pause/", content_type="application/json").json()["code"] == "no_rollout"
    model(max_model_len=4096)
    assert api.post("/api/v1/models/qwen/pause/", content_type="application/json").json()["state"] == "paused"
    assert tick() == 0
    assert api.post("/api/v1/models/qwen/resume/", content_type="application/json").json()["state"] == "rolling"
    assert api.post("/api/v1/models/qwen/rollback/", content_type="application/json").json()["state"] == "failed"
    assert api.get("/api/v1/models/qwen/rollout/").json()["reason"].startswith("rolled back by")


def test_after_a_finished_rollout_the_profile_before_comes_back_as_a_new_revision(api: Client) -> None:
    admission = serving(cards=1, max_model_len=2048)
    model(max_model_len=4096)
    go_over(admission)
    assert (Rollout.objects.get().state, CatalogModel.objects.get().stable_revision) == (RolloutState.DONE, 2)
    told = api.post("/api/v1/models/qwen/rollback/", content_type="application/json").json()
    assert (told["state"], told["origin"], told["target"]) == ("rolling", 2, 3)
    row = CatalogModel.objects.get()
    assert row.profile is not None
    assert (row.revision, row.profile["max_model_len"]) == (3, 2048)
    assert "goes back to the profile of revision 1" in Event.objects.get(kind="rollback_began").text
    tick()
    assert DryCheck.objects.filter(state=CheckState.OPEN).count() == 1  # it takes the way of every change


def test_a_rollback_that_no_engine_needs_to_be_told_of_is_there_at_once(api: Client) -> None:
    serving()
    assert api.post("/api/v1/models/qwen/rollback/", content_type="application/json").json()["code"] == "no_rollout"
    model(drain_timeout_seconds=7)
    assert api.post("/api/v1/models/qwen/rollback/", content_type="application/json").status_code == 204
    row = CatalogModel.objects.get()
    assert row.profile is not None
    assert (row.stable_revision, "drain_timeout_seconds" in row.profile) == (3, False)
    tick()
    assert Replica.objects.get().attempt == 1


def test_after_a_failed_rollout_what_runs_is_wished_again_and_no_engine_is_touched(api: Client) -> None:
    admission = serving()
    model(max_model_len=4096)
    tick()
    answer(admission, "unknown_flag", "no")
    tick()
    assert api.post("/api/v1/models/qwen/rollback/", content_type="application/json").status_code == 204
    row = CatalogModel.objects.get()
    assert row.profile is not None
    assert (row.revision, row.stable_revision, "max_model_len" in row.profile) == (3, 3, False)
    tick()
    assert (Replica.objects.get().attempt, Replica.objects.get().revision.number) == (1, 3)


def test_what_has_not_gone_back_yet_when_the_running_profile_is_wished_again_goes_there(api: Client) -> None:
    serving(cards=1)
    model(max_model_len=4096)
    catalog.roll_back(model=CatalogModel.objects.get(), actor="t")  # breaks it off
    Replica.objects.update(revision=ProfileRevision.objects.get(number=2))  # it had gone over
    assert api.post("/api/v1/models/qwen/rollback/", content_type="application/json").status_code == 204
    assert CatalogModel.objects.get().stable_revision == 3
    tick()
    assert Replica.objects.get().goal == 3


def test_what_is_being_deleted_is_led_nowhere(api: Client) -> None:
    serving()
    model(max_model_len=4096)
    tick()
    assert api.delete("/api/v1/models/qwen/").status_code == 204
    row = CatalogModel.objects.get()
    for verb in ("rollback", "pause", "resume"):
        assert api.post(f"/api/v1/models/qwen/{verb}/", content_type="application/json").status_code == 404
    for act in (catalog.roll_back, rollouts.pause, rollouts.resume):
        with pytest.raises(FleetError, match="qwen: it is being deleted"):
            act(model=row, actor="t")
    row.refresh_from_db()
    assert row.leaving
    assert row.replicas == 0


@pytest.mark.parametrize("given", [{"deadline_seconds": True}, {"deadline_seconds": "5 s"}, {"deadline_seconds": [5]}])
def test_what_is_asked_of_a_drain_is_of_its_kind(api: Client, given: dict[str, Any]) -> None:
    ready_node()
    answer = api.post("/api/v1/nodes/gpu-01/drain/", json.dumps(given), content_type="application/json")
    assert answer.status_code == 400
    assert Node.objects.get().drain_deadline_at is None


def test_nobody_goes_back_to_a_profile_that_has_failed(api: Client) -> None:
    admission = serving(cards=1, max_model_len=2048)
    model(max_model_len=9)
    tick()
    answer(admission, "unknown_flag", "no")
    tick()
    model(max_model_len=4096)
    go_over(admission)
    assert CatalogModel.objects.get().stable_revision == 3
    api.post("/api/v1/models/qwen/rollback/", content_type="application/json")
    row = CatalogModel.objects.get()
    assert row.profile is not None
    assert row.profile["max_model_len"] == 2048


def test_endpoints_have_nothing_to_go_back_to() -> None:
    catalog.save_entry(catalog.read_entry({"name": "out", "endpoints": [{"url": "http://10.0.0.5:8000"}]}), actor="t")
    with pytest.raises(FleetError, match="it has endpoints"):
        catalog.roll_back(model=CatalogModel.objects.get(name="out"), actor="ann")


def test_a_failed_replica_that_should_change_and_fits_nowhere_waits_for_a_place_and_says_so() -> None:
    """It is tried at once, for the failure was the old revision's: no pause is what it waits for."""
    admission = serving(cards=1)
    tell(admission, Shard.objects.get(), ShardState.FAILED, code="exited", detail="boom")
    assert Replica.objects.get().state == ReplicaState.FAILED
    operations.cordon_node(node=Node.objects.get(), reason="", actor="t")
    model(max_model_len=4096)
    tick()
    tick()
    replica = Replica.objects.get()
    assert (replica.state, replica.code) == (ReplicaState.PENDING, "unplaced")
    assert replica.reason == "0 of 1 node fit: gpu-01 is cordoned"
    assert replica.latest_failure["reason"] == "boom"


# -- drains ------------------------------------------------------------------------------------------------------------


def test_a_node_is_drained_by_api_with_progress_and_a_deadline(api: Client) -> None:
    first = serving(cards=1)
    second = ready_node("gpu-02", cards=1)
    answered = api.post("/api/v1/nodes/gpu-01/drain/", {"deadline_seconds": 600}, content_type="application/json")
    assert answered.json()["drain_left"] == ["qwen/1"]
    assert answered.json()["schedulable"] is False
    tick()
    substitute = Shard.objects.get(node_id=second.node_id)
    assert not Shard.objects.get(node_id=first.node_id).draining
    tell(second, substitute, ShardState.READY, endpoint="http://127.0.0.1:20001")
    tick()
    old = Shard.objects.get(node_id=first.node_id)
    assert old.draining
    tell(first, old, ShardState.STOPPED)
    tick()
    tick()
    assert Event.objects.filter(kind="node_drained").count() == 1
    node = api.get("/api/v1/nodes/gpu-01/").json()
    assert (node["drain_left"], node["drain_deadline_at"], node["schedulable"]) == (None, None, False)
    assert [str(row) for row in Replica.objects.all()] == ["qwen/2"]
    assert (
        api.post("/api/v1/nodes/gpu-01/cancel-drain/", content_type="application/json").json()["code"] == "not_draining"
    )


def test_a_cancelled_drain_ends_nothing_that_was_not_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a tick that read the fleet before still thinks that the deadline has come."""
    serving(cards=1)
    node = Node.objects.get()
    operations.drain_node(node=node, deadline_seconds=0, reason="", actor="t", now=timezone.now())
    before = load_wishes()
    operations.cancel_drain(node=node, actor="t")
    monkeypatch.setattr(reconciler, "load_wishes", lambda **_: before)
    tick()
    assert Shard.objects.get().wanted
    assert not Command.objects.filter(kind=CommandKind.STOP).exists()


def test_one_card_is_drained_and_its_replica_goes_to_another(api: Client) -> None:
    serving(cards=2)
    body = {"uuid": "GPU-0", "deadline_seconds": 60}
    assert api.post("/api/v1/nodes/gpu-01/drain-gpu/", body, content_type="application/json").status_code == 200
    tick()
    assert Shard.objects.get(replica__number=2).claims.get().gpu.uuid == "GPU-1"
    late = timezone.now() + timedelta(seconds=61)
    reconciler.run(holder="test", now=late)
    assert Command.objects.filter(shard__replica__number=1, kind=CommandKind.STOP).exists()


def test_a_drained_replica_is_unrouted_and_ends_with_its_last_request(api: Client) -> None:
    admission = serving()
    replica = Replica.objects.get()
    assert api.post(f"/api/v1/replicas/{replica.uid}/drain/", content_type="application/json").status_code == 200
    tick()
    ((endpoint,),) = (entry["endpoints"] for entry in published())
    assert endpoint["draining"]
    (order,) = desired_for(admission.node_id).shards
    assert order.draining
    assert order.drain_seconds == pytest.approx(600, abs=5)  # the profile's
    tell(admission, Shard.objects.get(), ShardState.STOPPED)
    assert Replica.objects.get().state == ReplicaState.STOPPED
    assert tick() == 0
    with pytest.raises(FleetError, match="deadline of -1 s"):
        operations.drain_replica(replica=replica, actor="t", now=timezone.now(), deadline_seconds=-1)


def test_drains_by_admin_are_confirmed_first(admin_client: Client) -> None:
    serving()
    node, card, replica = Node.objects.get(), Gpu.objects.first(), Replica.objects.get()
    assert card is not None
    for name, row, done in (("node", node, "drained"), ("gpu", card, "drained"), ("replica", replica, "drained")):
        url = reverse(f"admin:fleet_{name}_changelist")
        data = {"action": "drain", "_selected_action": [row.pk]}
        page = admin_client.post(url, data).content.decode()
        assert "Deadline in seconds" in page
        node.refresh_from_db()
        assert name != "node" or node.drain_deadline_at is None  # nothing has happened yet
        confirmed = {**data, "confirmed": "yes", "deadline_seconds": "60", "reason": "fan"}
        assert done in admin_client.post(url, confirmed, follow=True).content.decode()
    node.refresh_from_db()
    assert node.cordon_reason == "fan"
    assert Replica.objects.get().wish == ReplicaWish.STOP


# -- groups ------------------------------------------------------------------------------------------------------------


def group() -> tuple[nodes.Admission, nodes.Admission]:
    """A model over two nodes of one fabric."""
    port = {"port": 1, "state": "ACTIVE", "fabric": "ib", "link_layer": "InfiniBand"}
    found = []
    for name in ("gpu-01", "gpu-02"):
        admission = ready_node(name, cards=1)
        node = Node.objects.get(pk=admission.node_id)
        data = {**node.inventory, "adapters": [{"hca": "mlx5_0", "netdev": "ib0", "ports": [port]}]}
        reports.inventory.store(node, data, "f", now=timezone.now())
        found.append(admission)
    model(pipeline_parallel=2, nodes=2)
    tick()
    return found[0], found[1]


def test_the_ranks_of_a_group_are_told_where_to_meet_and_the_head_alone_is_routed() -> None:
    group()
    specs = [commands.desired_shard(shard).spec for shard in Shard.objects.order_by("rank")]
    assert [spec.rank for spec in specs] == [0, 1]
    assert {(spec.rendezvous_address, spec.rendezvous_port, spec.nodes) for spec in specs} == {("127.0.0.1", 21000, 2)}
    for shard in Shard.objects.all():
        admission = nodes.Admission(
            node_id=shard.node_id,
            node_name="",
            node_uid="",
            session_id=Node.objects.get(pk=shard.node_id).session_id or 0,
            desired=desired_for(shard.node_id),
            credential=None,
        )
        tell(admission, shard, ShardState.READY, endpoint=f"http://127.0.0.1:2000{shard.rank}")
    replica = Replica.objects.get()
    assert (replica.state, replica.endpoint) == (ReplicaState.READY, "http://127.0.0.1:20000")


def test_one_failed_rank_stops_the_other_and_late_words_of_the_old_attempt_change_nothing() -> None:
    """F29, failures 38."""
    first, second = group()
    head, other = Shard.objects.order_by("rank")
    of = {first.node_id: first, second.node_id: second}
    tell(of[other.node_id], other, ShardState.FAILED, code="nccl_timeout", detail="NCCL timed out")
    tick()
    assert Command.objects.get(kind=CommandKind.STOP).shard == head
    assert Replica.objects.get().state == ReplicaState.DEGRADED
    tell(of[head.node_id], head, ShardState.STOPPED)
    reconciler.run(holder="test", now=timezone.now() + timedelta(seconds=11))
    assert set(Shard.objects.filter(epoch=2).values_list("rendezvous_port", flat=True)) == {21001}
    tell(of[other.node_id], other, ShardState.READY)
    tell(of[head.node_id], head, ShardState.READY, endpoint="http://late:1")
    replica = Replica.objects.get()
    assert (replica.attempt, replica.state, replica.latest_failure["code"]) == (
        2,
        ReplicaState.STARTING,
        "nccl_timeout",
    )


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_refused_start_is_a_failed_attempt() -> None:
    admission = ready_node()
    model()
    tick()
    reports.apply_answer(
        command_id=Command.objects.get().pk,
        node_id=admission.node_id,
        session_id=admission.session_id,
        accepted=False,
        code="invalid_profile",
        detail="cannot use it",
        now=timezone.now(),
    )
    replica = Replica.objects.get()
    assert (replica.state, replica.latest_failure["code"]) == (ReplicaState.FAILED, "invalid_profile")


def test_a_hung_engine_is_unrouted_restarted_and_its_evidence_kept() -> None:
    """F30, failures 35."""
    heard()
    admission = serving()
    shard = Shard.objects.get()
    tell(admission, shard, ShardState.READY, endpoint=shard.endpoint, running=2, waiting=1, stalled_seconds=50.0)
    assert tick() == 0
    hear_flows([FlowWord(endpoint="qwen/1#1", in_flight=2, silent_seconds=50.0)])
    tick()
    replica = Replica.objects.get()
    assert replica.state == ReplicaState.DEGRADED
    assert Command.objects.filter(kind=CommandKind.STOP).count() == 1
    event = Event.objects.get(kind="replica_given_up")
    assert (event.data["running"], event.data["waiting"], event.data["code"]) == (2, 1, "hung")
    tell(admission, shard, ShardState.STOPPED)
    replica = Replica.objects.get()
    assert (replica.latest_failure["code"], replica.crash_count) == ("hung", 1)
    reconciler.run(holder="test", now=timezone.now() + timedelta(seconds=11))
    assert Replica.objects.get().attempt == 2


def test_a_stall_that_is_over_is_forgotten() -> None:
    admission = serving()
    shard = Shard.objects.get()
    report = ShardReport(shard=wire_name(shard), epoch=1, state=ShardState.READY, endpoint=shard.endpoint)
    assert report.stalled_seconds is None
    tell(admission, shard, ShardState.READY, endpoint=shard.endpoint, running=2, stalled_seconds=44.0)
    tell(admission, shard, ShardState.READY, endpoint=shard.endpoint, running=2)
    assert Shard.objects.get().stalled_at is None
    assert reconciler.run(holder="test", now=timezone.now() + timedelta(minutes=5)) == 0


def test_a_token_that_a_router_saw_vetoes_a_restart_and_an_older_attempts_word_is_left_out() -> None:
    heard()
    admission = serving()
    shard = Shard.objects.get()
    tell(admission, shard, ShardState.READY, endpoint=shard.endpoint, running=2, stalled_seconds=300.0)
    hear_flows([FlowWord(endpoint="qwen/1#9", in_flight=2, silent_seconds=0.0)])
    hear_flows([FlowWord(endpoint="qwen/1#1", in_flight=0, silent_seconds=0.0)])  # a router that it gives nothing
    assert not Flow.objects.exists()
    hear_flows([FlowWord(endpoint="qwen/1#1", in_flight=2, silent_seconds=3.0)])
    hear_flows([FlowWord(endpoint="qwen/1#1", in_flight=1, silent_seconds=90.0)])  # another router
    assert tick() == 0
    assert Replica.objects.get().state == ReplicaState.READY
    Flow.objects.update(moved_at=timezone.now() - timedelta(seconds=50))
    assert tick() == 1
    assert Replica.objects.get().state == ReplicaState.DEGRADED


def test_a_routers_word_of_many_endpoints_takes_two_queries(django_assert_num_queries: Any) -> None:
    serving(cards=2)
    model(replicas=2)
    tick()
    words = [FlowWord(endpoint=f"qwen/{n}#1", in_flight=n, silent_seconds=1.0) for n in range(1, 300)]
    words += [FlowWord(endpoint="out@http://10.0.0.5:8000", in_flight=1, silent_seconds=1.0)]
    for _ in range(2):
        with django_assert_num_queries(2):
            hear_flows(words)
    assert set(Flow.objects.values_list("replica__number", "in_flight")) == {(1, 1), (2, 2)}


def test_of_a_crash_loop_the_newest_attempts_are_kept() -> None:
    from fleet import tasks

    serving()
    old = timezone.now() - timedelta(days=8)
    replica = Replica.objects.get()
    node = Node.objects.get()
    for epoch in range(2, 41):
        Shard.objects.create(replica=replica, node=node, epoch=epoch, state=ShardState.FAILED)
    Shard.objects.update(state_at=old)
    Replica.objects.update(attempt=41)
    tasks.housekeeping()
    kept = set(Shard.objects.values_list("epoch", flat=True))
    assert kept == {1, *range(21, 41)}  # the first is not ended
