"""Rules of the house that no linter knows."""

import ast
import re
from pathlib import Path

import pytest

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
