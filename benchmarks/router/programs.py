"""The two C programs of this benchmark: built with gcc when their source has changed, started on given cores."""

import json
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: -Werror stays out: a newer compiler's new warning must not end a benchmark.
FLAGS = ("-O2", "-Wall", "-Wextra")


def available() -> bool:
    return shutil.which("gcc") is not None


def build(folder: Path) -> tuple[Path, Path]:
    """The engine and the load generator."""
    folder.mkdir(parents=True, exist_ok=True)
    return _compile("engine", folder), _compile("load", folder)


def _compile(name: str, folder: Path) -> Path:
    source, target = HERE / f"{name}.c", folder / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["gcc", *FLAGS, "-o", str(target), str(source)], check=True)
    return target


def pinned(cores: Collection[int], argv: Sequence[object]) -> list[str]:
    """The command, kept to these cores with all that it starts."""
    return ["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *map(str, argv)]


class Engine:
    def __init__(self, program: Path, cores: Collection[int]) -> None:
        self.process = subprocess.Popen(pinned(cores, [program, 0]), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class LoadError(Exception):
    """cannot load the router."""


def nothing() -> None:
    """For whoever does not want to know when a window opens or closes."""


def load(
    program: Path,
    cores: Collection[int],
    mode: str,
    *args: object,
    on_begin: Callable[[], None] = nothing,
    on_end: Callable[[], None] = nothing,
) -> dict[str, Any]:
    """Run one load to its end; its figures. They are of the window between the two calls."""
    argv = pinned(cores, [program, mode, *args])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for word, call in (("begin\n", on_begin), ("end\n", on_end)):
            if process.stdout.readline() != word:
                raise LoadError(f"cannot load ({mode}): {process.stderr.read().strip()}")
            call()
        figures: dict[str, Any] = json.loads(process.stdout.readline())
        return figures
