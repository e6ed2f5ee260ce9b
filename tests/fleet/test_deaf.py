"""A control plane that hears nobody says so once, loses nobody for it, and says when it is over."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from fleet.domain.states import NodeStatus
from fleet.models import Event, Listener, Node
from fleet.services import heartbeats, liveness
from tests.fleet.test_clocks import _move
from tests.fleet.test_guards import fleet

pytestmark = pytest.mark.django_db

STALL = timedelta(minutes=10)


def flush(name: str = "web-1", *, first: bool = False) -> None:
    heartbeats.flush(listener=name, first=first, beats={})


def told() -> list[str]:
    kinds = Event.objects.filter(kind__startswith="deaf_").order_by("id")
    return list(kinds.values_list("kind", flat=True))


def judge() -> None:
    for _ in range(3):
        liveness.run()


def all_ready() -> bool:
    return Node.objects.filter(status=NodeStatus.READY).count() == 20


def test_a_listener_that_hangs_is_told_once_and_when_it_is_over() -> None:
    fleet(20)
    _move(-STALL)
    judge()
    assert told() == ["deaf_began"]
    assert "no listener has written for 600 s; nothing is declared lost" in liveness.deaf()
    assert all_ready()
    flush()
    judge()
    assert told() == ["deaf_began", "deaf_ended"]
    assert liveness.deaf() == ""
    assert all_ready()
    assert not Event.objects.filter(kind__in=["node_lost", "node_unreachable", "eviction_held"]).exists()


def test_a_database_that_hung_is_told_though_the_listener_is_back_before_anything_is_judged() -> None:
    fleet(20)
    _move(-STALL)
    flush()
    judge()
    assert told() == ["deaf_ended"]
    assert "web-1 had written nothing for 600 s" in Event.objects.get(kind="deaf_ended").text
    assert all_ready()


def test_the_outage_ends_with_another_listener_too() -> None:
    fleet(20)
    _move(-STALL)
    judge()
    flush("web-2", first=True)
    assert told() == ["deaf_began", "deaf_ended"]


def test_a_short_gap_and_a_start_are_no_news() -> None:
    fleet(20)
    _move(-timedelta(seconds=10))
    judge()
    flush()
    Listener.objects.update(seen_at=Now() - STALL)
    flush(first=True)
    judge()
    assert told() == []


def test_without_nodes_nobody_is_missed() -> None:
    flush(first=True)
    _move(-STALL)
    judge()
    assert told() == []


def test_the_home_page_says_it(admin_client: Client) -> None:
    fleet(20)
    _move(-STALL)
    judge()
    page = admin_client.get(reverse("admin:index")).content.decode()
    assert "No agent is heard" in page
    assert "no listener has written for 600 s" in page
