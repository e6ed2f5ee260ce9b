"""An engine that no replica claims is told to end, and to who looks at the node."""

import uuid

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent_client.protocol.messages import Report, ShardReport
from agent_client.protocol.states import ShardState
from fleet.models import Event
from fleet.services import reports
from tests.fleet.test_reconciler import ready_node

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
