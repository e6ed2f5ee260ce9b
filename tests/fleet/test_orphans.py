"""An engine that no replica claims is told to end, and to who looks at the node."""

import uuid
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent_client.protocol.messages import Report, ShardReport
from agent_client.protocol.states import ShardState
from fleet.models import Event, Gpu, GpuClaim, Node, Replica
from fleet.services import catalog, reports
from fleet.services.commands import wire_name
from fleet.services.nodes import Admission
from tests.fleet.test_reconciler import gpu, make_ready, model, ready_node, register, tell, tick, unheard

pytestmark = pytest.mark.django_db


def test_an_orphan_is_told_once_by_name_and_pids_and_its_agent_is_brought_into_line(admin_client: Client) -> None:
    admission = ready_node("gpu-01")
    orphan = ShardReport(shard=f"{uuid.uuid4()}/0", epoch=3, state=ShardState.READY, pids=(4242,))
    of = {"node_id": admission.node_id, "session_id": admission.session_id, "now": timezone.now()}
    for _ in range(3):
        assert reports.apply_whole_report(report=Report(shards=(orphan,)), **of)  # a sync is due
    event = Event.objects.get(kind="engines_orphaned")
    assert event.text == (
        f"gpu-01 runs 1 engine that no replica claims, told to end: {orphan.shard} attempt 3 (pids 4242)"
    )
    page = admin_client.get(reverse("admin:fleet_node_change", args=[admission.node_id])).content.decode()
    assert "that no replica claims" in page
    ended = ShardReport(shard=orphan.shard, epoch=3, state=ShardState.STOPPED)
    assert not reports.apply_whole_report(report=Report(shards=(ended,)), **of)
    assert Event.objects.filter(kind="engines_orphaned").count() == 1


def orphan(state: ShardState = ShardState.READY, *, shard: str = "", pid: int = 4242) -> ShardReport:
    return ShardReport(shard=shard or f"{uuid.uuid4()}/0", epoch=3, state=state, pids=(pid,))


def say(admission: Admission, *shards: ShardReport, **fields: Any) -> None:
    of = {"node_id": admission.node_id, "session_id": admission.session_id, "now": timezone.now()}
    reports.apply_whole_report(report=Report(shards=shards, **fields), **of)


def say_one(admission: Admission, report: ShardReport) -> bool:
    of = {"node_id": admission.node_id, "session_id": admission.session_id, "now": timezone.now()}
    return reports.apply_shard_status(report=report, **of)


def orphans() -> list[dict[str, Any]]:
    return list(Node.objects.get().orphans)


def test_what_nobody_asked_for_is_listed_for_as_long_as_its_agent_reports_it(admin_client: Client) -> None:
    admission, one, other = ready_node("gpu-01"), orphan(), orphan(pid=4343)
    say(admission, one)
    (first,) = orphans()
    say(admission, one, other)
    assert [each for each in orphans() if each["shard"] == one.shard] == [first]  # since it was first seen
    shown = admin_client.get("/api/v1/nodes/gpu-01/").json()["orphans"]
    assert {(each["shard"], each["attempt"], *each["pids"]) for each in shown} == {
        (one.shard, 3, 4242),
        (other.shard, 3, 4343),
    }
    page = admin_client.get(reverse("admin:fleet_node_change", args=[admission.node_id])).content.decode()
    assert "Runs there, but no replica claims it" in page
    assert one.shard in page
    say(admission, other)
    assert [each["shard"] for each in orphans()] == [other.shard]
    say(admission)
    assert orphans() == []
    page = admin_client.get(reverse("admin:fleet_node_change", args=[admission.node_id])).content.decode()
    assert "Runs there, but no replica claims it" not in page


def test_one_engines_word_of_its_own_counts_as_well() -> None:
    admission, one = ready_node("gpu-01"), orphan()
    assert say_one(admission, one)
    (first,) = orphans()
    assert say_one(admission, one)
    assert orphans() == [first]
    assert not say_one(admission, orphan(ShardState.STOPPED, shard=one.shard))
    assert orphans() == []


def test_what_an_agent_registers_with_is_listed_and_a_reboot_ends_it() -> None:
    admission = ready_node("gpu-01", shards=(orphan(),))
    assert len(orphans()) == 1
    unheard()
    register("gpu-01", boot="boot-2", node_uid=admission.node_uid, credential=admission.credential, shards=(orphan(),))
    assert orphans() == []


@pytest.mark.parametrize("pid", [4242, 5000])
def test_an_orphan_on_a_card_is_named_where_it_is_in_the_way(
    pid: int, admin_client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its agent tells the leader of an engine's processes, and on the card is that or one that it started."""
    process = {"pid": pid, "name": "python", "memory_mib": 70_000, "foreign": False}
    admission = ready_node("gpu-01", inventory={"gpus": [gpu(0, memory_used_mib=70_000, processes=[process])]})
    model()
    one = orphan()
    say(admission, one)
    assert tick() == 1  # that it does not fit
    call_command("explain", "qwen")
    told = f"is used by an engine that no replica claims ({one.shard} attempt 3, pid {pid}), 70000 MiB"
    assert told in capsys.readouterr().out
    card = admin_client.get("/api/v1/nodes/gpu-01/ledger/").json()
    assert "an engine that no replica claims" in str(card)
    page = admin_client.get(reverse("admin:fleet_gpu_change", args=[Gpu.objects.get().pk])).content.decode()
    assert "gpu-01 GPU 0 is held by an engine that no replica claims" in page
    assert "ours, of no replica" in page
    assert not GpuClaim.objects.exists()
    say(admission)  # the cards were looked at before it ended
    tick()
    assert GpuClaim.objects.count() == 1


def test_its_cards_are_nobody_elses_while_it_runs_though_no_process_is_seen_on_them() -> None:
    """They were released when its end was believed, and the agent's look at the processes may be old or forbidden."""
    admission = ready_node("gpu-01", cards=1)
    model()
    tick()
    shard = make_ready(admission)
    tell(admission, shard, ShardState.FAILED, detail="so it seemed")
    assert not GpuClaim.objects.filter(released_at__isnull=True).exists()
    runs = ShardReport(shard=wire_name(shard), epoch=shard.epoch, state=ShardState.READY, pids=(4242,))
    say(admission, runs)
    assert orphans()[0]["gpus"] == [Gpu.objects.get().uuid]
    catalog.delete_model("qwen", actor="ann")
    tick()
    say(admission, runs)  # its row is gone by now, and what was known of it stays
    model("other")
    tick()
    assert not GpuClaim.objects.filter(released_at__isnull=True).exists()
    text = Replica.objects.get(model__name="other").explanation["text"]
    assert f"an engine that no replica claims ({wire_name(shard)} attempt 1)" in text
    say(admission)
    tick()
    assert GpuClaim.objects.filter(released_at__isnull=True).exists()


@pytest.mark.parametrize("seen", [False, True])
def test_of_an_engine_of_which_nothing_is_known_the_cards_are_guessed_widely(seen: bool) -> None:
    """Its node was deleted and has joined anew: what it was given went with the rows."""
    process = {"pid": 4242, "name": "python", "memory_mib": 70_000, "foreign": False}
    cards = [gpu(0), gpu(1, processes=[process] if seen else [])]
    admission = ready_node("gpu-01", inventory={"gpus": cards}, shards=(orphan(),))
    model(replicas=2)
    tick()
    assert GpuClaim.objects.count() == int(seen)
    say(admission)
    tick()
    assert GpuClaim.objects.count() == 2
