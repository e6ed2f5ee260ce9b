"""What installed engines say of themselves: asked once, never waited for, and nothing refused on a guess."""

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_client.engines.help_text import Known, option_names, unknown_flags
from agent_client.engines.options import table
from agent_client.hardware.program import run_quietly
from agent_client.installed import AGAIN_SECONDS, Installed, packaged_version
from agent_client.profile import EngineKind

VLLM = EngineKind.VLLM
ARGPARSE = """usage: vllm serve [model_tag] [options]

options:
  --host HOST           Host name. See also --not-an-option.
  --port PORT
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
                        Number of groups.
  --enable-prefix-caching, --no-enable-prefix-caching
                        Whether to.
  --max-num-seqs MAX_NUM_SEQS
  -O N, --optimization-level N
"""
LLAMA = """----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads
-fa,   --flash-attn [on|off|auto]       set Flash Attention
--mlock                                 force system to keep model in RAM rather than swapping
                                        (see --no-such-thing)
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers
"""


class Program:
    """Stands for the runner: counts the questions and answers when it is told to."""

    def __init__(self, text: str | None = ARGPARSE, version: str = "INFO noise\n0.99.1\n") -> None:
        self.text, self.version = text, version
        self.asked: list[list[str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, argv: Sequence[str], seconds: float) -> str | None:
        self.asked.append([word for word in argv if "=" not in word or word.startswith("--")][1:])
        self.may_answer.wait(10)
        return self.version if argv[-1] == "--version" else self.text


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    program = tmp_path / "env" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program), "serve"


def packaged(command: tuple[str, ...], name: str) -> None:
    site = Path(command[0]).parents[1] / "lib" / "python3.12" / "site-packages"
    (site / name).mkdir(parents=True)


def test_option_names_stand_at_the_beginnings_of_lines() -> None:
    names = option_names(ARGPARSE)
    assert names is not None
    assert {"--host", "-tp", "--tensor-parallel-size", "--no-enable-prefix-caching", "-O"} <= names
    assert "--not-an-option" not in names or "--host" in names  # on an option's own line the rest may count
    llama = option_names(LLAMA)
    assert llama is not None
    assert {"-h", "--usage", "-fa", "--flash-attn", "--n-gpu-layers", "-ngl", "--mlock"} <= llama
    assert "--no-such-thing" not in llama
    assert option_names("Traceback (most recent call last):\n  File\nImportError: no vllm\n") is None


def test_it_is_asked_once_and_the_answer_outlives_the_agent(tmp_path: Path, command: tuple[str, ...]) -> None:
    program = Program()
    installed = Installed(run=program, folder=tmp_path)
    found = installed.known(VLLM, command, wait_seconds=10)
    assert found.version == "0.99.1"
    assert found.numbers == (0, 99, 1)
    assert found.knows("--max-num-seqs")
    assert not found.knows("--swap-space")
    assert installed.known(VLLM, command) == found
    assert Installed(run=program, folder=tmp_path).known(VLLM, command) == found
    assert program.asked == [[*command, "--help=all"], [command[0], "--version"]]
    Path(command[0]).write_text("#!/bin/sh\n# upgraded\n")
    Installed(run=program, folder=tmp_path).known(VLLM, command, wait_seconds=10)
    assert len(program.asked) == 4


def test_a_start_does_not_wait_for_a_slow_answer_and_the_next_has_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    program = Program()
    program.may_answer.clear()
    installed = Installed(run=program, folder=tmp_path)
    for _ in range(3):
        assert installed.known(VLLM, command, wait_seconds=0.01).names is None
    program.may_answer.set()
    assert installed.known(VLLM, command, wait_seconds=10).names
    assert [words[-1] for words in program.asked] == ["--help=all", "--version"]


@pytest.mark.parametrize("text", [None, "", "Traceback\nImportError: no vllm\n"])
def test_an_engine_that_cannot_be_asked_refuses_nothing_and_is_asked_again_later(
    command: tuple[str, ...], text: str | None
) -> None:
    program, clock = Program(text), [0.0]
    installed = Installed(run=program, folder=None, now=lambda: clock[0])
    for _ in range(3):
        assert installed.known(VLLM, command, wait_seconds=10).knows("--anything")
    assert len(program.asked) == 1
    clock[0] += AGAIN_SECONDS
    program.text = ARGPARSE
    assert not installed.known(VLLM, command, wait_seconds=10).knows("--anything")


def test_the_version_is_read_from_the_packages_metadata_and_its_own_list_is_used_at_once(
    command: tuple[str, ...],
) -> None:
    program = Program()
    program.may_answer.clear()
    packaged(command, "vllm-0.32.1+cu129.dist-info")
    assert packaged_version(VLLM, command) == "0.32.1+cu129"
    found = Installed(run=program, folder=None).known(VLLM, command, wait_seconds=0)
    assert (found.version, found.numbers) == ("0.32.1+cu129", (0, 32, 1))
    assert found.knows("--max-num-seqs")
    assert not found.knows("--swap-space")  # gone in 0.32
    program.may_answer.set()


def test_another_version_is_not_judged_by_the_list(command: tuple[str, ...]) -> None:
    program = Program(None)
    packaged(command, "vllm-0.11.0.dist-info")
    found = Installed(run=program, folder=None).known(VLLM, command, wait_seconds=0)
    assert (found.version, found.names) == ("0.11.0", None)


def test_a_command_that_ends_soon_asks_only_what_it_does_not_know(tmp_path: Path, command: tuple[str, ...]) -> None:
    program = Program()
    installed = Installed(run=program, folder=tmp_path, lasting=False)
    assert installed.known(VLLM, command).version == "0.99.1"
    packaged(command, "vllm-0.32.0.dist-info")
    assert installed.known(VLLM, command).version == "0.32.0"
    assert len(program.asked) == 2


def test_llama_server_takes_exact_names_alone(tmp_path: Path, command: tuple[str, ...]) -> None:
    program = Program(LLAMA, "version: 10434 (81ddd8b)\nbuilt with cc\n")
    found = Installed(run=program, folder=None).known(EngineKind.LLAMACPP, command[:1], wait_seconds=10)
    assert found.version == "10434"
    assert found.knows("--flash_attn")
    assert not found.knows("--flash")


def test_programs_of_the_agent_are_not_asked() -> None:
    program = Program()
    installed = Installed(run=program, folder=None)
    assert installed.known(EngineKind.ECHO, ()).names == frozenset(table("echo_server").by_name)
    launcher = ("python3", "/agent/programs/xllamacpp_server.py")
    assert not installed.known(EngineKind.LLAMACPP, launcher).knows("--mlock")
    assert installed.known(EngineKind.CUSTOM, ("x",)).knows("--mlock")
    assert program.asked == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"k": 1}', '{"k": {"names": 5, "version": ""}}', "\x00"])
def test_a_torn_file_of_answers_is_asked_for_anew(tmp_path: Path, command: tuple[str, ...], content: str) -> None:
    (tmp_path / "installed.json").write_text(content)
    program = Program()
    assert Installed(run=program, folder=tmp_path).known(VLLM, command, wait_seconds=10).names
    assert json.loads((tmp_path / "installed.json").read_text())


KNOWN = Known(engine=VLLM, version="0.32.0", names=frozenset(table("vllm").by_name))


@pytest.mark.parametrize(
    "word", ["--max-num-seqs=8", "--max_num_seqs", "--max-num-s", "-O3", "-cc.mode=3", "--hf-overrides.a=1", "-1", "-"]
)
def test_every_spelling_that_the_engine_takes_passes(word: str) -> None:
    assert list(unknown_flags([word], KNOWN, set_by_user=True)) == []


def test_an_unknown_flag_is_refused_by_name_with_version_and_nearest() -> None:
    words = ["--enable-prefix-cachin=1", "--max-num-seq", "8", "--max-num-sequences", "8"]
    (problem,) = unknown_flags(words, KNOWN, set_by_user=True)
    assert problem.code == "flag_unknown"
    assert problem.text == (
        "cannot use --max-num-sequences in extra_args: the vllm 0.32.0 of this node has no such option"
    )
    assert "--max-num-seqs" in problem.hint
    (other,) = unknown_flags(["--headless-not"], KNOWN, set_by_user=False)
    assert "it has no option --headless-not, which this profile needs" in other.text


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.skipif(not os.environ.get("LLMGW_TEST_VLLM"), reason="LLMGW_TEST_VLLM does not name a vllm program")
def test_the_real_vllm_tells_its_version_and_every_option_of_the_list(tmp_path: Path) -> None:
    command = (os.environ["LLMGW_TEST_VLLM"], "serve")
    found = Installed(run=run_quietly, folder=tmp_path).known(VLLM, command, wait_seconds=140)
    assert found.numbers is not None
    assert found.numbers[:2] == (0, 32)
    answer = next(iter(json.loads((tmp_path / "installed.json").read_text()).values()))
    assert set(answer["names"]) >= set(table("vllm").by_name)
