"""Who may come under a name: an agent without an identity takes over only its own machine's, long unheard of."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from fleet.domain.states import NodeStatus
from fleet.models import Event, Listener, Node
from fleet.services import nodes, operations
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


# -- another boot under one identity ----------------------------------------------------------------------------------


def turned_away(node: nodes.Admission, **fields: Any) -> FleetError:
    with pytest.raises(FleetError) as refused:
        register(node_uid=node.node_uid, credential=node.credential, **fields)
    return refused.value


def heard(seconds_ago: float = 0.0) -> None:
    Listener.objects.update(seen_at=Now())
    Node.objects.update(last_seen_at=Now() - timedelta(seconds=seconds_ago))


@pytest.mark.parametrize(
    ("machine", "seconds", "gets_in"),
    [
        ("machine-gpu-01", 1.0, False),
        ("machine-gpu-01", 16.0, True),
        ("another", 16.0, False),  # a disk in another machine: its old one must be as good as gone
        ("another", 31.0, True),
    ],
)
def test_another_boot_gets_in_once_the_one_before_is_silent(
    away: nodes.Admission, machine: str, seconds: float, gets_in: bool
) -> None:
    heard(seconds)
    if gets_in:
        register(node_uid=away.node_uid, credential=away.credential, boot="boot-2", machine=machine)
        assert Event.objects.filter(kind="node_rebooted").exists()
        return
    refusal = turned_away(away, boot="boot-2", machine=machine)
    assert refusal.code == nodes.STILL_HEARD
    assert refusal.detail.startswith("cannot register gpu-01 from 127.0.0.1 yet: an agent of another boot of it was")
    assert "agent_client join" in refusal.hint
    assert not Event.objects.filter(kind="node_rebooted").exists()
    assert Node.objects.get().boot_id == "boot-1"


def test_two_boots_that_are_both_heard_are_two_machines(listened: None) -> None:
    node = ready_node()
    for _ in range(3):
        assert turned_away(node, boot="boot-2").code == nodes.STILL_HEARD
    heard()  # what it said before, written down late
    assert turned_away(node, boot="boot-2").code == nodes.STILL_HEARD
    heard()
    assert turned_away(node, boot="boot-2").code == "quarantined"
    assert Node.objects.get().status == NodeStatus.QUARANTINED
    assert Event.objects.get(kind="node_quarantined").text.count("127.0.0.1") == 2
    operations.release_quarantine(node=Node.objects.get(), actor="ann")
    register(node_uid=node.node_uid, credential=node.credential)
    assert turned_away(node, boot="boot-2").code == nodes.STILL_HEARD


def test_a_clock_that_is_put_back_again_and_again_makes_no_reboot_a_copy(listened: None) -> None:
    """What was heard before is stamped anew each time, earlier than it was."""
    node = ready_node()
    for seconds_ago in range(1, 6):
        assert turned_away(node, boot="boot-2").code == nodes.STILL_HEARD
        heard(seconds_ago)
    heard(16.0)
    register(node_uid=node.node_uid, credential=node.credential, boot="boot-2")
    assert Node.objects.get().status != NodeStatus.QUARANTINED


def test_one_that_was_turned_away_and_then_not_heard_of_is_no_copy(listened: None) -> None:
    """A machine that crashed and was quick to boot."""
    node = ready_node()
    for _ in range(5):
        assert turned_away(node, boot="boot-2").code == nodes.STILL_HEARD
    heard(16.0)
    register(node_uid=node.node_uid, credential=node.credential, boot="boot-2")
    assert Node.objects.get().status != NodeStatus.QUARANTINED
