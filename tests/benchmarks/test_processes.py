"""What /proc tells of a process tree, and what is made of it when it tells nothing."""

import os
from pathlib import Path

import pytest

from benchmarks.router import processes


def told(folder: Path, pid: int, *lines: str) -> None:
    for number, line in enumerate(lines):
        task = folder / str(pid) / "task" / str(pid + number)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(line)


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["5 2000000000 9\n", "1 500000000 1\n"], 2.5),
        (["5 2000000000 9\n", ""], 2.0),  # a thread that has ended meanwhile
        (["5 2000000000 9\n", "garbage"], 2.0),
        (["5 x 9"], None),
        (["7"], None),
        ([], None),
    ],
)
def test_time_waited_is_told_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], seconds: float | None
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    told(tmp_path, 100, *lines)
    assert processes.waited_seconds([100, 101]) == seconds


def test_a_process_that_is_gone_has_no_figures() -> None:
    gone = 2**22 + 1  # above the kernel's highest
    assert (processes.cpu_seconds([gone]), processes.waited_seconds([gone]), processes.mib(gone)) == (0, None, 0.0)


def test_our_own_figures() -> None:
    assert processes.cpu_seconds([os.getpid()]) > 0
    assert processes.mib(os.getpid()) > 1
