"""A vendor's tool under a deadline: it may hang, print without end or leave children behind."""

import sys
import time
from pathlib import Path

import pytest

from agent_client.hardware import program


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_both_streams_and_the_code_come_back_apart() -> None:
    finished = program.run(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(9)"))
    assert finished == program.Output(code=9, output="out\n", errors="err\n")
    assert finished.complaint == "err"


def test_complaint_of_a_silent_tool_is_its_code() -> None:
    assert program.run(python("raise SystemExit(3)")).complaint == "exit code 3"


def test_missing_program_is_said_by_name(tmp_path: Path) -> None:
    finished = program.run([str(tmp_path / "amd-smi")])
    assert (finished.code, finished.complaint) == (127, f"{tmp_path}/amd-smi: No such file or directory")


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
    ],
    ids=["sleeps", "sleeps with closed streams", "ignores TERM"],
)
def test_hanging_tool_ends_at_the_deadline(code: str) -> None:
    began = time.monotonic()
    finished = program.run(python(code), deadline_seconds=0.5)
    assert (finished.code, finished.errors) == (None, "it did not answer within 0.5 s")
    assert time.monotonic() - began < 3


def test_endless_output_is_cut_off() -> None:
    finished = program.run(["yes", "warning"])
    assert (finished.code, finished.errors) == (None, "it printed more than 16 MiB")


def test_output_that_is_no_text_is_still_text() -> None:
    assert (
        program.run(python(r"import sys; sys.stdout.buffer.write(b'\xff ok')")).output == "\N{REPLACEMENT CHARACTER} ok"
    )


def test_a_child_left_on_the_streams_is_not_waited_for() -> None:
    leave = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)']); print(1)"
    began = time.monotonic()
    assert program.run(python(leave), deadline_seconds=20) == program.Output(code=0, output="1\n")
    assert time.monotonic() - began < 4
