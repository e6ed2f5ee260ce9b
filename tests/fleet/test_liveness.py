"""A control plane that could not write was deaf: what it missed does not count against the nodes."""

from datetime import timedelta

import pytest
from django.utils import timezone

from fleet.domain.states import NodeStatus
from fleet.models import Event, Listener, Node
from fleet.services import heartbeats, liveness
from tests.fleet.test_reconciler import ready_node

pytestmark = pytest.mark.django_db


def age(**fields: timedelta) -> None:
    """Move times of the listener into the past."""
    row = Listener.objects.get()
    Listener.objects.update(**{name: getattr(row, name) - by for name, by in fields.items()})


def flush(*, first: bool = False) -> None:
    heartbeats.flush(listener="web-1", first=first, beats={})


@pytest.fixture
def silent_node() -> None:
    """Its last word is ten minutes old; a listener has been up for an hour."""
    ready_node()
    Node.objects.update(last_seen_at=timezone.now() - timedelta(minutes=10))
    flush(first=True)
    age(started_at=timedelta(hours=1))


def test_a_silent_node_is_lost_while_somebody_listens(silent_node: None) -> None:
    liveness.run()
    assert Node.objects.get().status == NodeStatus.UNREACHABLE
    liveness.run()
    assert Node.objects.get().status == NodeStatus.LOST


def test_after_a_gap_listening_begins_anew(silent_node: None) -> None:
    age(seen_at=timedelta(minutes=10))  # the database was away: nothing was written
    flush()
    liveness.run()
    assert Node.objects.get().status == NodeStatus.READY
    assert not Event.objects.filter(kind="node_unreachable").exists()


def test_a_restarted_process_of_the_same_name_begins_anew(silent_node: None) -> None:
    flush(first=True)
    liveness.run()
    assert Node.objects.get().status == NodeStatus.READY


def test_without_a_gap_listening_goes_on(silent_node: None) -> None:
    began = Listener.objects.get().started_at
    flush()
    assert Listener.objects.get().started_at == began
