"""`manage.py catalog`: declarative, but nothing is removed unless that is asked for."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from fleet.models import CatalogModel, Replica
from fleet.services import catalog
from tests.fleet.test_reconciler import model, ready_node, tick

pytestmark = pytest.mark.django_db

OUTSIDE = {"name": "outside", "endpoints": ["http://10.0.0.5:8000"]}
ECHO = {"name": "echo", "profile": {"engine": "echo", "gpus": 0}}
ONE = "models: [{name: echo, replicas: 2, profile: {engine: echo, gpus: 0}}]"


def run(tmp_path: Path, verb: str, text: str, *flags: str) -> tuple[str, str]:
    file = tmp_path / "catalog.yaml"
    file.write_text(text)
    out, err = io.StringIO(), io.StringIO()
    call_command("catalog", verb, str(file), *flags, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def names() -> list[str]:
    return [entry["name"] for entry in catalog.export_catalog()["models"]]


@pytest.fixture(autouse=True)
def _two_models() -> None:
    catalog.apply_catalog({"models": [OUTSIDE, ECHO]}, actor="t")


def test_what_the_file_does_not_name_stays_without_prune_and_nothing_else_changes(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as error:
        run(tmp_path, "apply", ONE)
    assert str(error.value).startswith("cannot apply the catalog: it does not name outside, so it would remove it")
    assert "nothing is changed" in str(error.value)
    assert "--prune" in str(error.value)
    assert CatalogModel.objects.get(name="echo").replicas == 1
    assert run(tmp_path, "apply", ONE, "--prune")[0].splitlines() == ["~ echo: replicas: 1 → 2", "- outside"]
    assert names() == ["echo"]


def test_what_runs_is_counted_before_it_would_be_removed(tmp_path: Path) -> None:
    ready_node()
    model()
    tick()
    tick()
    assert Replica.objects.exclude(attempt=0).count() == 1
    with pytest.raises(CommandError, match="not name outside, qwen, so it would remove them and end 1 replica;"):
        run(tmp_path, "apply", ONE)


@pytest.mark.parametrize("verb", [["apply"], ["apply", "--dry-run"], ["apply", "--prune"], ["diff"], ["validate"]])
@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "models:\n", "keys: []"])
def test_a_file_without_models_is_refused(tmp_path: Path, verb: list[str], text: str) -> None:
    with pytest.raises(CommandError, match="it has no `models`; an empty catalog is written `models: \\[\\]`"):
        run(tmp_path, verb[0], text, *verb[1:])
    assert names() == ["echo", "outside"]


def test_a_catalog_is_emptied_by_saying_so(tmp_path: Path) -> None:
    run(tmp_path, "apply", "models: []", "--prune")
    assert names() == []


@pytest.mark.parametrize("verb", [["apply", "--dry-run"], ["diff"]])
def test_a_dry_run_says_how_a_removal_is_asked_for(tmp_path: Path, verb: list[str]) -> None:
    out, err = run(tmp_path, verb[0], ONE, *verb[1:])
    assert "- outside" in out
    assert "removed with `catalog apply --prune` only" in err


def test_apply_is_whole_or_not_at_all(tmp_path: Path) -> None:
    taken: dict[str, Any] = {"name": "more", "aliases": ["new"], "endpoints": ["http://10.0.0.6:8000"]}
    CatalogModel.objects.filter(name="outside").update(leaving=True)  # its names are still its own
    with pytest.raises(CommandError, match="cannot save more: there is a model outside, which is being removed"):
        run(tmp_path, "apply", f"models: [{ECHO | {'replicas': 3}}, {taken | {'aliases': ['outside']}}]")
    assert CatalogModel.objects.get(name="echo").replicas == 1


def test_what_is_no_yaml_is_said_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"as YAML: line 1, column 15: "):
        run(tmp_path, "validate", "models: [{a: b: c}]")
