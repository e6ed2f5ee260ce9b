"""Keys of a router that runs from a file alone: the same limits as the database's, refused where they are wrong."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from django.core.management import CommandError, call_command

from agent_client.profile import KEY_LIMITS, Catalog, parse_catalog
from routing import feed
from routing.domain import limits
from routing.keys import authenticate
from routing.models import ApiKey
from routing.table import parse


def test_the_same_limits_as_the_databases() -> None:
    fields = {field.name for field in ApiKey._meta.get_fields()}
    assert tuple(KEY_LIMITS) == limits.NAMES
    assert fields.issuperset(KEY_LIMITS)


def test_a_line_for_a_catalog_file_has_every_limit_and_says_the_same_whatever_the_names() -> None:
    out = io.StringIO()
    given = dict.fromkeys(limits.NAMES, 7)
    options = [f"--{name.replace('_', '-')}=7" for name in given]
    call_command("router_key", "a, b: {c}", "--catalog-entry", "--models=x#1,y", *options, stdout=out)
    text, line = out.getvalue().strip().splitlines()
    (key,) = parse_catalog({"models": [], "keys": yaml.safe_load(line)}).keys
    assert (key.name, key.models, key.limits) == ("a, b: {c}", ("x#1", "y"), given)
    (routed,) = parse(feed.document_of_catalog(Catalog(keys=(key,)))).keys.values()
    assert authenticate({routed.prefix: routed}, text.rsplit(" ", 1)[1], datetime.now(UTC)) is routed
    assert routed.limits == limits.Limits(**given)
    for wrong in ("0", "-1", "many", "1.5", str(10**15)):
        with pytest.raises(CommandError, match="is no whole number from 1 to"):
            call_command("router_key", "ci", "--catalog-entry", f"--tokens-per-minute={wrong}")
    with pytest.raises(CommandError, match="leave out --manage"):
        call_command("router_key", "ci", "--catalog-entry", "--manage")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "7", True, 10**15])
@pytest.mark.parametrize("name", limits.NAMES)
def test_a_limit_that_is_none_is_refused_with_file_and_key(tmp_path: Path, name: str, wrong: object) -> None:
    file = tmp_path / "endpoints.yaml"
    entry = {"name": "ci", "prefix": "k3v9x2mq", "sha256": "0" * 64, name: wrong}
    file.write_text(yaml.safe_dump({"models": [], "keys": [entry]}))
    with pytest.raises(CommandError) as told:
        call_command("router", "--catalog", str(file), "--only-write", str(tmp_path / "routes.json"))
    lines = str(told.value).splitlines()
    assert lines[0] == f"cannot use {file}:"
    assert lines[1].strip().startswith(f"cannot use keys[ci].{name} = {wrong!r}: a whole number from 1 to ")
    assert len(lines) == 2


@pytest.mark.parametrize("flags", [[], ["--catalog-entry"]])
@pytest.mark.parametrize("name", ["", "  "])
def test_a_key_has_a_name(name: str, flags: list[str]) -> None:
    with pytest.raises(CommandError, match="cannot make the key: it has no name"):
        call_command("router_key", name, *flags)


@pytest.mark.django_db
def test_a_key_for_models_that_are_not_there_is_made_and_says_so() -> None:
    out, err = io.StringIO(), io.StringIO()
    call_command("router_key", "ci", "--models= nosuch, other,nosuch", stdout=out, stderr=err)
    assert out.getvalue().startswith("llmgw_")
    assert "no model is called nosuch, other now" in err.getvalue()
