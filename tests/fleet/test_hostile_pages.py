"""What nobody should send to the operators' pages, to every list, row, form and action that there is: no crash."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.db import transaction
from django.test import Client
from django.urls import reverse

from fleet.models import CatalogModel
from routing.services import create_key
from tests.fleet.test_reconciler import model, tick
from tests.fleet.test_rollouts_and_drains import answer, serving

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(240)]

TABLES = {table._meta.label_lower: table for table in admin.site._registry}
#: Those with the most actions and fields, for CI; the others take minutes, and find the same code.
BUSIEST = ("fleet.catalogmodel", "fleet.node", "fleet.replica", "routing.apikey")


def walked(*tables: str) -> Any:
    each = [pytest.param(t, marks=pytest.mark.heavy if t in BUSIEST else pytest.mark.long) for t in tables]
    return pytest.mark.parametrize("table", each)


QUERY_VALUES = ("\0", "99999999999999999999", "-1", "٣")
FIXED_NAMES = (
    "q",
    "o",
    "p",
    "e",
    "all",
    "_facets",
    "_popup",
    "_to_field",
    "id__exact",
    "id__in",
    "pk",
    "sha256__startswith",
)
LOOKUPS = ("", "__exact", "__in", "__year", "__id__exact")
ROWS = ("nope", "99999999999999999999", "-1", "_00", "٣", "x" * 300)
SELECTED: tuple[list[str], ...] = ([], ["nope"], ["\0"], ["99999999999999999999"], ["-1"])
CONFIRMED = {"confirmed": "yes"}
GIVEN = (
    {},
    CONFIRMED,
    CONFIRMED | {"deadline_seconds": "NaN"},
    CONFIRMED | {"deadline_seconds": "1e999", "reason": "\0"},
    CONFIRMED | {"deadline_seconds": "5", "reason": "x" * 5_000},
    {"select_across": "1", "index": "zz", "back": "\0//else.example"},
)


@pytest.fixture
def staff(admin_client: Client) -> Client:
    admission = serving()
    model(max_model_len=4096)
    tick()
    answer(admission)
    create_key(name="ci")
    admin_client.raise_request_exception = False
    return admin_client


def ask(client: Client, method: str, at: str, data: Any = None) -> Any:
    """The answer, of which nothing stays."""
    with transaction.atomic():
        found = client.post(at, data) if data is not None else client.generic(method, at)
        transaction.set_rollback(True)
    assert found.status_code < 500, (method, at[:200], data, found.exc_info)
    if found.status_code >= 400 and found.status_code != 405:
        text = found.content.decode()
        assert "<h1>cannot" in text, (at[:200], text[:300])
    return found


def at(table: str, page: str, *row: Any) -> str:
    return reverse(f"admin:{table.replace('.', '_')}_{page}", args=row)


def filters(table: str) -> Iterator[str]:
    owner = admin.site._registry[TABLES[table]]
    yield from FIXED_NAMES
    for given in owner.list_filter:
        name = given if isinstance(given, str) else given[0]  # type: ignore[index]
        yield from (f"{name}{lookup}" for lookup in LOOKUPS)
    if owner.date_hierarchy:
        yield from (f"{owner.date_hierarchy}__{part}" for part in ("year", "month", "day"))


@walked(*TABLES)
def test_odd_queries_of_lists_crash_nothing(staff: Client, table: str) -> None:
    for name in filters(table):
        for value in QUERY_VALUES:
            ask(staff, "GET", f"{at(table, 'changelist')}?{name}={quote(value)}")


@walked(*TABLES)
def test_rows_that_are_none_crash_nothing(staff: Client, table: str) -> None:
    first = TABLES[table]._default_manager.first()
    for row in (*ROWS, *([first.pk] if first else [])):
        for page in ("change", "history", "delete"):
            for method in ("GET", "POST"):
                ask(staff, method, at(table, page, row))
                ask(staff, method, at(table, page, row) + "?_popup=1&_to_field=zz")


@walked(*TABLES)
def test_odd_actions_crash_nothing(staff: Client, table: str) -> None:
    first = TABLES[table]._default_manager.first()
    owner: Any = admin.site._registry[TABLES[table]]
    for action in (*owner.actions, "delete_selected", "nope", "\0"):
        for selected in (*SELECTED, *([[str(first.pk)]] if first else [])):
            for more in GIVEN:
                form = {"action": action, "_selected_action": selected, **more}
                ask(staff, "POST", at(table, "changelist"), form)


VALUES = (
    "",
    "\0",
    "x",
    "-1",
    "99999999999999999999",
    "x" * 70_000,
    "[" * 20_000,
    '"\\ud800"',
    "a: &a [*a]",
    "[1, {}]",
    "é💥",
)


@walked("fleet.catalogmodel", "routing.apikey", "auth.user", "auth.group")
def test_odd_forms_crash_nothing_and_what_was_typed_is_shown_again(staff: Client, table: str) -> None:
    rows = TABLES[table]._default_manager.all()
    pages = [at(table, "add"), *(at(table, "change", row.pk) for row in rows[:1])]
    for page in pages:
        fields = [f for f in staff.get(page).context["adminform"].form.fields if f != "password"]
        for value in VALUES:
            ask(staff, "POST", page, dict.fromkeys(fields, value))
            for field in fields:
                shown = ask(
                    staff,
                    "POST",
                    page,
                    {"name": "zz", "replicas": "1", "profile": "engine: echo\ngpus: 0"} | {field: value},
                )
                typed = value.strip()[:40]
                if (
                    table == "fleet.catalogmodel"
                    and field in ("profile", "endpoints", "routing")
                    and shown.status_code == 200
                ):
                    assert typed.replace("&", "&amp;").replace('"', "&quot;") in shown.content.decode(), (
                        field,
                        value[:40],
                    )


def test_a_refused_form_changes_nothing(staff: Client) -> None:
    before = list(CatalogModel.objects.values())
    row = CatalogModel.objects.get()
    for field in ("aliases", "replicas", "profile", "endpoints", "routing"):
        staff.post(
            at("fleet.catalogmodel", "change", row.pk),
            {"replicas": "1", "profile": "engine: echo"} | {field: "[1, {}]"},
        )
    assert list(CatalogModel.objects.values()) == before
