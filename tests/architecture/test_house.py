"""Rules of the house that no linter knows."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.checks import run_checks

from fleet.admin.nodes import NodeAdmin
from tests.e2e.harness import ROOT

SOURCES = [
    p for room in ("fleet", "routing", "llmgw_site") for p in (ROOT / room).rglob("*.py") if "migrations" not in p.parts
]
STATE_COLUMNS = {"status", "state"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_state_is_written_through_the_one_door(path: Path) -> None:
    """`.update(state=…)` stands in services/transitions alone; orders have a file of their own."""
    if str(path).endswith(("services/transitions.py", "services/commands.py")):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            assert not STATE_COLUMNS & {keyword.arg for keyword in node.keywords}, f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", [p for p in SOURCES if "fleet" in p.parts], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_fleet_goes_by_the_databases_clock(path: Path) -> None:
    """What one process stamps another ages: `fleet.clock` and `Now()` alone, no process's own clock."""
    own = re.search(r"timezone\.now|datetime\.(utc)?now\(|\btime\.time\(|auto_now", path.read_text())
    assert own is None, f"{path}: {own and own.group()}"


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-agent.txt", "requirements-dev.txt", "requirements-demo.txt"]
)
def test_every_requirement_is_pinned(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith(("#", "-r"))]
    assert lines
    for line in lines:
        assert "==" in line or ">=" in line, line


def test_every_setting_is_in_the_example() -> None:
    read = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', (ROOT / "llmgw_site" / "settings.py").read_text()))
    listed = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert read == listed


def test_pages_are_loaded_by_who_serves_them_alone() -> None:
    """They are two thirds of the time in which a worker, a router or a command starts."""
    code = "import sys, django; django.setup(); print(*[n for n in sys.modules if n.startswith(('fleet', 'daphne'))])"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "llmgw_site.settings"}
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "fleet.models" in loaded.stdout.split()
    assert not [name for name in loaded.stdout.split() if name.startswith(("fleet.admin", "fleet.api", "daphne"))]


def test_the_checks_load_the_pages_and_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeAdmin, "list_display", ("no_such_column",))
    assert [each.id for each in run_checks(tags=["admin"])] == ["admin.E108"]
