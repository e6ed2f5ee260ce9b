"""Two people at one form, a form whose object has gone, and one that is sent twice: no work is lost in silence."""

import html
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from fleet.models import CatalogModel, Replica
from fleet.services import catalog
from fleet.services.errors import FleetError
from routing.models import ApiKey
from routing.services import create_key
from tests.fleet.test_rollouts_and_drains import serving

pytestmark = pytest.mark.django_db

PROFILE = {"engine": "vllm", "model": "/m/q"}


@pytest.fixture
def row() -> CatalogModel:
    catalog.apply_catalog({"models": [{"name": "m", "aliases": ["default"], "profile": PROFILE}]}, actor="t")
    return CatalogModel.objects.get()


def opened(client: Client, url: str) -> dict[str, Any]:
    """What the page's form would send if nothing were typed."""
    form = client.get(url).context["adminform"].form
    shown = {field.html_name: form.fields[field.name].prepare_value(field.value()) for field in form}
    return {name: "" if value is None else value for name, value in shown.items() if value is not False}


def page_of(row: Any) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def refused(client: Client, url: str, form: dict[str, Any]) -> str:
    answer = client.post(url, form)
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def test_an_edit_of_a_page_that_is_stale_overwrites_nobody(admin_client: Client, row: CatalogModel) -> None:
    mine = opened(admin_client, page_of(row))
    catalog.change_entry("m", {"replicas": 7, "aliases": ["theirs"]}, actor="ann")
    page = refused(admin_client, page_of(row), mine | {"routing": '{"queue": 77}'})
    assert "cannot save m: its aliases and replicas were changed meanwhile" in page
    assert "ann" in page
    assert '{"queue": 77}' in page  # what was typed is still there
    now = CatalogModel.objects.get()
    assert (now.replicas, now.aliases, now.routing) == (7, ["theirs"], {})


def test_who_has_read_that_may_save_all_the_same(admin_client: Client, row: CatalogModel) -> None:
    mine = opened(admin_client, page_of(row))
    catalog.change_entry("m", {"replicas": 7}, actor="ann")
    answer = admin_client.post(page_of(row), mine | {"replicas": "2"})
    form = answer.context["adminform"].form
    again = mine | {"replicas": "2", "seen": form["seen"].value()}
    assert admin_client.post(page_of(row), again).status_code == 302
    assert CatalogModel.objects.get().replicas == 2


def test_a_change_that_is_the_same_is_no_conflict(admin_client: Client, row: CatalogModel) -> None:
    mine = opened(admin_client, page_of(row)) | {"replicas": "7"}
    assert admin_client.post(page_of(row), mine).status_code == 302
    assert admin_client.post(page_of(row), mine).status_code == 302  # sent twice
    assert CatalogModel.objects.get().revision == row.revision


def test_a_model_that_is_being_deleted_is_not_wanted_again_by_a_stale_page(admin_client: Client) -> None:
    serving()
    row = CatalogModel.objects.get()
    mine = opened(admin_client, page_of(row))
    catalog.delete_model(row.name, actor="ann")
    assert "was deleted meanwhile" in refused(admin_client, page_of(row), mine | {"replicas": "3"})
    assert CatalogModel.objects.get().leaving
    assert Replica.objects.get().wish == "remove"


def test_what_was_typed_of_a_model_that_is_gone_is_shown_again_and_can_be_added(
    admin_client: Client, row: CatalogModel
) -> None:
    mine = opened(admin_client, page_of(row)) | {"routing": '{"queue": 77}'}
    catalog.delete_model("m", actor="ann")
    answer = admin_client.post(page_of(row), mine)
    page = html.unescape(answer.content.decode())
    assert answer.status_code == 200
    assert "cannot save m: it was deleted meanwhile" in page
    assert '{"queue": 77}' in page
    again = {**mine, "name": answer.context["adminform"].form["name"].value()}
    assert admin_client.post(reverse("admin:fleet_catalogmodel_add"), again).status_code == 302
    assert CatalogModel.objects.get(name="m").routing == {"queue": 77}


def test_a_model_that_another_has_added_meanwhile_is_not_replaced(admin_client: Client, row: CatalogModel) -> None:
    form = {
        "name": "m",
        "aliases": "",
        "replicas": 9,
        "profile": "engine: echo\ngpus: 0",
        "endpoints": "",
        "routing": "",
    }
    assert "cannot add it: there is a model of that name" in refused(
        admin_client, reverse("admin:fleet_catalogmodel_add"), form
    )
    assert CatalogModel.objects.get().replicas == 1


def test_what_only_the_service_finds_is_an_error_of_the_form(
    admin_client: Client, row: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: Any, **__: Any) -> Any:
        raise FleetError("name_taken", "cannot save m: another model has that name or alias")

    mine = opened(admin_client, page_of(row))
    monkeypatch.setattr(catalog, "save_entry", taken)
    page = refused(admin_client, page_of(row), mine | {"replicas": "5"})
    assert "cannot save m: another model has that name or alias" in page
    assert 'value="5"' in page


@pytest.mark.parametrize("seen", ["", "x", "{}", "[]", '{"replicas": 1}', "{" * 9_000, '"\\ud800"', "null", "{}" * 999])
def test_a_mark_that_was_tampered_with_crashes_nothing(admin_client: Client, row: CatalogModel, seen: str) -> None:
    mine = opened(admin_client, page_of(row)) | {"seen": seen, "replicas": "5"}
    assert admin_client.post(page_of(row), mine).status_code in (200, 302)


def test_the_list_says_when_a_model_was_changed(row: CatalogModel) -> None:
    catalog.change_entry("m", {"replicas": 2}, actor="ann")
    assert CatalogModel.objects.get().updated_at > row.updated_at


def test_beside_a_refused_form_stands_what_is_so_and_not_what_was_typed(
    admin_client: Client, row: CatalogModel
) -> None:
    mine = opened(admin_client, page_of(row)) | {"aliases": "", "replicas": "9", "routing": "queue: ["}
    page = refused(admin_client, page_of(row), mine)
    assert "cannot read this as YAML or JSON" in page
    assert "m: 0 of 1 copy ready" in page


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_that_another_has_limited_meanwhile_stays_limited(admin_client: Client) -> None:
    key, _ = create_key(name="ci")
    mine = opened(admin_client, page_of(key))
    ApiKey.objects.update(requests_per_minute=5)
    page = refused(admin_client, page_of(key), mine | {"concurrency": "3"})
    assert "cannot save ci" in page
    assert "requests per minute" in page
    assert ApiKey.objects.get().requests_per_minute == 5


def test_a_key_that_is_gone_is_not_made_anew(admin_client: Client) -> None:
    key, _ = create_key(name="ci")
    mine = opened(admin_client, page_of(key))
    url = page_of(key)
    key.delete()
    answer = admin_client.post(url, mine, follow=True)
    assert answer.status_code == 200
    assert not ApiKey.objects.exists()


def test_a_key_is_made_once_though_its_form_is_sent_twice(admin_client: Client) -> None:
    form = {"name": "ci", "allowed_models": ""}
    assert admin_client.post(reverse("admin:routing_apikey_add"), form).status_code == 302
    assert "cannot save it: there is a key of that name" in refused(
        admin_client, reverse("admin:routing_apikey_add"), form
    )
    assert ApiKey.objects.count() == 1
