"""The two C programs of this benchmark: built with gcc when their source has changed, started on given cores."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Collection
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


def pinned(cores: Collection[int]) -> Callable[[], None]:
    """For `preexec_fn`; what taskset does, for the child and all that it starts."""
    return lambda: os.sched_setaffinity(0, cores)


class Engine:
    def __init__(self, program: Path, cores: Collection[int]) -> None:
        self.process = subprocess.Popen([program, "0"], stdout=subprocess.PIPE, text=True, preexec_fn=pinned(cores))
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class LoadError(Exception):
    """cannot load the router."""


def load(
    program: Path, cores: Collection[int], mode: str, *args: object, on_begin: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run one load; `on_begin` is called when its window opens, and its figures come back when that has closed."""
    argv = [str(program), mode, *map(str, args)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pinned(cores)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "begin\n":
            raise LoadError(f"cannot load ({mode}): {process.stderr.read().strip()}")
        on_begin()
        line = process.stdout.readline()
        if not line:
            raise LoadError(f"cannot load ({mode}): {process.stderr.read().strip()}")
        figures: dict[str, Any] = json.loads(line)
        return figures
