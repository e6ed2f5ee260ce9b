"""Who may come under a name: an agent without an identity takes over only its own machine's, long unheard of."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from fleet.models import Event, Listener, Node
from fleet.services import nodes
from fleet.services.errors import FleetError
from tests.fleet.test_reconciler import ready_node, register

pytestmark = pytest.mark.django_db
LONG = timedelta(minutes=10)


def refused() -> str:
    with pytest.raises(FleetError) as taken:
        register()
    assert taken.value.code == "node_id_taken"
    return f"{taken.value.detail}; {taken.value.hint}"


@pytest.fixture
def listened() -> None:
    """For hours."""
    now = timezone.now()
    Listener.objects.create(name="web", started_at=now - timedelta(hours=3), seen_at=now)


@pytest.fixture
def away(listened: None) -> nodes.Admission:
    """A node whose stream has just ended."""
    admission = ready_node()
    nodes.close_session(session_id=admission.session_id, reason="the connection ended", now=timezone.now())
    return admission


def test_one_that_is_just_reconnecting_keeps_its_name(away: nodes.Admission) -> None:
    assert "may be on its way back, silent for 0 s" in refused()
    back = register(node_uid=away.node_uid, credential=away.credential)
    assert back.node_uid == away.node_uid


def test_one_that_was_not_heard_for_long_gives_its_name_to_its_machine(away: nodes.Admission) -> None:
    Node.objects.update(last_seen_at=F("last_seen_at") - LONG)
    taken = register()
    assert (taken.node_uid, taken.credential is not None) == (away.node_uid, True)


def test_what_nobody_could_hear_is_no_silence(away: nodes.Admission) -> None:
    """The control plane itself was away: all agents are on their way back."""
    Node.objects.update(last_seen_at=F("last_seen_at") - LONG)
    Listener.objects.update(started_at=timezone.now())
    assert "by itself in 35 s at the latest" in refused()
    Listener.objects.all().delete()  # nothing says that it listens
    refused()


def test_another_machine_never_gets_it(away: nodes.Admission) -> None:
    Node.objects.update(last_seen_at=F("last_seen_at") - LONG)
    with pytest.raises(FleetError, match="belongs to another machine"):
        register(machine="another")


def test_who_is_refused_again_and_again_is_one_event(away: nodes.Admission) -> None:
    for remote in ("10.0.0.9:40001", "10.0.0.9:40002", "10.0.0.8:40001"):
        with pytest.raises(FleetError, match=f"from {remote.partition(':')[0]}: that node_id belongs") as taken:
            register(machine="another", remote=remote)
        assert remote not in taken.value.detail  # the agent tells a new word once, and a port is new each time
    assert Event.objects.filter(kind="node_id_taken").count() == 2
    Event.objects.update(at=F("at") - LONG * 7)
    with pytest.raises(FleetError):
        register(machine="another", remote="10.0.0.9:40003")
    assert Event.objects.filter(kind="node_id_taken").count() == 3
