"""Forms of the admin take what a catalog file holds, and say where it is wrong."""

import html
import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from fleet.models import CatalogModel
from fleet.services import catalog
from routing.models import ApiKey

pytestmark = pytest.mark.django_db

FORM = {"name": "m", "aliases": "", "replicas": 1, "profile": "", "endpoints": "", "routing": ""}
YAML = "engine: vllm\nmodel: /m/q\nextra_args: [--enable-prefix-caching]\nenv:\n  A: 'b'\n"
PROFILE = {"engine": "vllm", "model": "/m/q", "extra_args": ["--enable-prefix-caching"], "env": {"A": "b"}}


def add(client: Client, **fields: Any) -> Any:
    return client.post(reverse("admin:fleet_catalogmodel_add"), FORM | fields)


def said(client: Client, **fields: Any) -> str:
    answer = add(client, **fields)
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


@pytest.mark.parametrize("text", [YAML, json.dumps(PROFILE)])
def test_a_profile_is_yaml_or_json(admin_client: Client, text: str) -> None:
    assert add(admin_client, profile=text).status_code == 302
    assert CatalogModel.objects.get().profile.items() >= PROFILE.items()


@pytest.mark.parametrize("text", ["default, q:7b", "default\nq:7b", '["default", "q:7b"]', "- default\n- q:7b\n"])
def test_names_have_commas_or_are_a_list(admin_client: Client, text: str) -> None:
    assert add(admin_client, profile=YAML, aliases=text).status_code == 302
    row = CatalogModel.objects.get()
    assert row.aliases == ["default", "q:7b"]
    page = admin_client.get(reverse("admin:fleet_catalogmodel_change", args=[row.pk])).content.decode()
    assert "default, q:7b</textarea>" in page
    made = {"name": "ci", "allowed_models": text}
    assert admin_client.post(reverse("admin:routing_apikey_add"), made).status_code == 302
    assert ApiKey.objects.get().allowed_models == ["default", "q:7b"]


def test_a_key_without_names_may_use_all(admin_client: Client) -> None:
    admin_client.post(reverse("admin:routing_apikey_add"), {"name": "ci", "allowed_models": " "})
    assert ApiKey.objects.get().allowed_models is None


WRONG = [
    ({"profile": "engine: vllm\nmodel: a: b"}, "cannot read this as YAML or JSON: line 2, column 9: "),
    ({"profile": '{"engine": "vllm",\n "model": }'}, None),
    ({"profile": "engine: vllm\nengine: echo"}, "line 2, column 1: `engine` stands there twice"),
    ({"profile": "[" * 2000}, "it is nested more than 50 deep"),
    ({"profile": "a: " + "x" * 70_000}, "it has 70,003 bytes; 65,536 are allowed"),
    ({"profile": "engine: echo\nenv: {A: 2027-01-01}"}, "such as a date"),
    ({"profile": 'engine: echo\nenv: {A: "\\ud800"}'}, "holds NUL or half of a surrogate pair"),
    ({"profile": 'engine: "\\0"'}, "engine holds NUL or half of a surrogate pair"),
    ({"routing": "queue: 99999999999999999999"}, "queue is a number that does not fit 64 bits"),
    ({"routing": "hold_seconds: .inf"}, "hold_seconds is not a finite number"),
    ({"profile": "engine: !!bool x"}, "line 1, column 9: it is no bool"),
    ({"aliases": '["\\0"]', "profile": YAML}, "holds NUL or half of a surrogate pair"),
    ({"endpoints": "- url: http://10.0.0.5:8000\n url: x"}, "line 2, column 2: "),
    ({"aliases": "[1, 2]", "profile": YAML}, "names are needed, such as default, qwen"),
]


@pytest.mark.parametrize("more", [{}, {"_plan": "1"}])
@pytest.mark.parametrize(("fields", "text"), WRONG)
def test_what_cannot_be_read_is_said_once_with_its_place(
    admin_client: Client, fields: dict[str, str], text: str | None, more: dict[str, str]
) -> None:
    page = said(admin_client, **fields, **more)
    assert (text or "`model` is missing") in page
    assert "it needs either `profile`" not in page
    if text:  # a field's own
        assert page.index('href="#id_') < page.index("<fieldset")  # seen first, whatever covers the field
    assert next(iter(fields.values())).strip()[:60] in page  # what was typed is still there
    assert not CatalogModel.objects.exists()


def test_a_plan_takes_yaml(admin_client: Client) -> None:
    page = said(admin_client, profile=YAML, _plan="1")
    assert "Nothing is saved yet: see the plan." in page
    assert "correct the error" not in page
    assert not CatalogModel.objects.exists()


def test_a_form_that_is_saved_as_it_came_changes_nothing(admin_client: Client) -> None:
    entry = {"name": "m", "aliases": ["default"], "profile": PROFILE, "routing": {"queue": 3}}
    catalog.apply_catalog({"models": [entry]}, actor="t")
    row = CatalogModel.objects.get()
    url = reverse("admin:fleet_catalogmodel_change", args=[row.pk])
    form = admin_client.get(url).context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    shown = {name: form.fields[name].prepare_value(value) for name, value in values.items()}
    assert admin_client.post(url, shown).status_code == 302
    assert CatalogModel.objects.get().revision == row.revision
