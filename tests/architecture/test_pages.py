"""Pages that list what the code has: a name that is new there is missing here, until somebody says what it means."""

import dataclasses
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec

from agent_client import config
from agent_client.engines import custom
from agent_client.profile import EngineKind, Profile, parse_catalog, parse_profile, read_yaml
from agent_client.profile.profile import OWNED_ENV
from fleet.domain.rollout import NO_RESTART
from routing.dataplane.journal import Line
from routing.dataplane.metrics import Metrics
from routing.models import Usage

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def first_cells(name: str, heading: str) -> set[str]:
    """The names in the first cells of the tables below a heading, which may hold several."""
    _, _, rest = f"\n{page(name)}".partition(f"\n{heading}\n")
    assert rest, heading
    below = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`[^|]*?) \|", below, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def yaml_of(name: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page(name), re.DOTALL)


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DOCS.glob("*.md") if f"docs/{path.name}" not in readme] == []


def test_every_field_of_a_profile_is_explained() -> None:
    assert first_cells("profile.md", "## Fields") == {field.name for field in dataclasses.fields(Profile)}
    assert first_cells("profile.md", "## Engines") == set(EngineKind)


def test_defaults_of_a_profile_are_those_of_the_code() -> None:
    _, _, table = page("profile.md").partition("## Fields")
    for name in ("start_timeout_seconds", "drain_timeout_seconds", "stop_grace_seconds", "nodes", "priority"):
        (default,) = re.findall(rf"^\| `{name}` \| [^|]*, (\S+) \|", table, re.MULTILINE)
        assert int(default) == getattr(Profile(engine=EngineKind.ECHO), name)
    unrestarted = re.findall(r"A change of (.*?) restarts nothing", table, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", unrestarted[0])) == NO_RESTART


def test_what_a_profile_must_not_set_and_what_a_custom_command_may_use_is_said() -> None:
    text = page("profile.md")
    assert [name for name in OWNED_ENV if f"`{name}`" not in text] == []
    assert [name for name in custom._FIELDS if f"`{{{name}}}`" not in text] == []
    assert first_cells("profile.md", "## A custom engine") == set(custom._OPTIONS)


def test_the_profiles_that_are_shown_are_accepted(tmp_path: Path) -> None:
    profile, policy, catalog = yaml_of("profile.md")
    assert parse_profile(read_yaml(profile.encode())).env["HF_TOKEN"]
    (mine,) = parse_catalog(read_yaml(catalog.encode())).models
    assert mine.profile is not None
    assert mine.profile.engine is EngineKind.CUSTOM
    path = tmp_path / "agent.yaml"
    path.write_text(policy, encoding="utf-8")
    assert config.load(flags={"state_dir": str(tmp_path)}, environ={}, path=path).policy.engines == {
        "custom": config.EnginePolicy()
    }


def test_every_key_of_the_agents_file_is_explained() -> None:
    assert first_cells("agent.md", "# The agent's configuration") == set(config._KEYS)
    assert first_cells("agent.md", "## `policy`") == {*config._POLICY_KEYS, *config._HUB_KEYS}
    assert f"`{config.PREFIX}SERVER`" in page("agent.md")


def test_every_metric_that_the_router_shows_is_listed_with_its_kind() -> None:
    shown = dict(re.findall(r"^# TYPE (\S+) (\S+)$", Metrics().text(), re.MULTILINE))
    listed = re.findall(r"^\| `(llmgw_\w+)` \| (\w+) \|", page("operations.md"), re.MULTILINE)
    assert dict(listed) == shown


def test_every_field_of_the_access_log_and_of_usage_is_listed() -> None:
    line = {field.name for field in msgspec.structs.fields(Line)}
    assert first_cells("operations.md", "## Logs") == {*line, "event"}
    columns = {field.column for field in Usage._meta.concrete_fields} - {"id"}
    assert first_cells("operations.md", "## Usage") == columns


def test_the_backup_holds_rows_that_are_not_in_the_databases_own_file_yet(tmp_path: Path) -> None:
    (line,) = re.findall(r"^python -c .*$", page("operations.md"), re.MULTILINE)
    for folder in ("var", "backup"):
        (tmp_path / folder).mkdir()
    database = sqlite3.connect(tmp_path / "var" / "llmgw.sqlite3")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE t (x)")
    database.execute("INSERT INTO t VALUES (1)")
    database.commit()
    subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=tmp_path, check=True, timeout=60)
    database.close()
    assert sqlite3.connect(tmp_path / "backup" / "llmgw.sqlite3").execute("SELECT x FROM t").fetchall() == [(1,)]
