"""The commands that READMEs and docs name are there and take their words; none of them is carried out."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*ROOT.glob("benchmarks/**/README.md"), *ROOT.glob("docs/*.md"))
COMMAND = re.compile(r"python -m (benchmarks\.[a-z.]+)([^`#\n]*)")
COMMANDS = sorted({found for page in PAGES for found in COMMAND.findall(page.read_text(encoding="utf-8"))})


def entry(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        own = ROOT.joinpath(*module.split(".")[:-1]) / "requirements.txt"  # what this benchmark alone needs
        if own.exists() and str(missing.name) in own.read_text():
            pytest.skip(f"needs {missing.name}")
        raise


@pytest.mark.parametrize(("module", "words"), COMMANDS, ids=[f"{m}{w}".strip() for m, w in COMMANDS])
def test_a_command_of_a_page_parses(module: str, words: str) -> None:
    found = entry(module)
    assert callable(found.main)
    if hasattr(found, "parser"):
        found.parser().parse_args(shlex.split(words))
    else:  # counts of rounds, fleets or nodes, one word each
        assert all(word.isdecimal() for word in shlex.split(words))


def test_a_word_that_is_none_does_not_parse() -> None:
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        entry("benchmarks.router.run").parser().parse_args(["--quik"])


def test_each_benchmark_is_on_the_page() -> None:
    told = {module for module, _ in COMMANDS}
    there = {f"benchmarks.{path.parent.name}.run" for path in ROOT.glob("benchmarks/*/run.py")}
    assert there - told == set()
