"""Whatever an agent says of its hardware, its node registers, the others stay, and the pages still open."""

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_client.protocol.codec import decode
from agent_client.protocol.messages import FROM_AGENT, Report
from fleet import snapshots
from fleet.domain.overview import overview
from fleet.models import Node
from fleet.services import reports
from tests.fleet.test_reconciler import gpu, ready_node
from tests.support.examples import examples

pytestmark = pytest.mark.django_db

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (*gpu(0), "bus", "numa", "mig", "compute_capability", "memory_used_mib")
CARD = st.dictionaries(st.sampled_from(FIELDS), JSON | st.text(max_size=400)) | JSON
PORT = st.dictionaries(st.sampled_from(["port", "state", "rate_gbps", "fabric", "gid_index", "problems"]), JSON) | JSON
ADAPTER = st.fixed_dictionaries({"hca": JSON, "ports": st.lists(PORT, max_size=3) | JSON}) | JSON
INVENTORY = st.dictionaries(
    st.sampled_from(["gpus", "adapters", "warnings", "domains"]), st.lists(CARD | ADAPTER, max_size=4) | JSON
)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inventory=INVENTORY)
def test_any_inventory_is_stored_and_shown(inventory: Any, admin_client: Client) -> None:
    admission = ready_node(f"node-{Node.objects.count()}")
    frame = json.dumps({"type": "report", "seq": 1, "shards": [], "inventory": inventory, "inventory_fingerprint": "x"})
    message, _ = decode(frame.replace("NaN", "1e999").replace("Infinity", "1e999"), accept=tuple(FROM_AGENT))
    assert isinstance(message, Report)
    of_whom = {"node_id": admission.node_id, "session_id": admission.session_id}
    reports.apply_whole_report(**of_whom, report=message, now=timezone.now())
    overview(snapshots.load(), now=timezone.now())
    page = admin_client.get(reverse("admin:fleet_node_change", args=[admission.node_id]))
    assert page.status_code == 200
    Node.objects.all().delete()
