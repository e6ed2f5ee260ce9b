"""NVML that hangs, dies or is killed: the card it happens at is named and left out, all others stay."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_client.hardware import nvml, program
from tests.agent.hardware.machine import Machine, codes, needs_gcc
from tests.support import fake_nvml

pytestmark = needs_gcc


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def placeable(source: nvml.Nvml, *, deadline_seconds: float = 5.0) -> list[int]:
    return [gpu["index"] for gpu in source.read(deadline_seconds=deadline_seconds).gpus if gpu["placeable"]]


def test_a_hanging_card_is_left_out_and_the_others_stay(machine: Machine) -> None:
    facts = fake_nvml.dgx_h100()
    clock = Clock()
    source = nvml.Nvml(clock=clock)
    machine.write(facts)
    assert len(source.read().gpus) == 8
    machine.write(facts, **{"3.memory": "hang"})
    found = source.read(deadline_seconds=1.5)
    assert [gpu["index"] for gpu in found.gpus if gpu["placeable"]] == [0, 1, 2, 4, 5, 6, 7]
    assert codes(found.gpus[3]) == ["not_answering"]
    assert found.gpus[3]["problems"][0]["text"] == (
        "the driver hangs at this card: it did not answer within 1.5 s; it is left alone for 10 minutes"
    )
    assert found.gpus[3]["uuid"] == "GPU-00000003-aaaa-bbbb-cccc-dddddddddddd"
    assert found.gpus[3]["bus"] == "0000:4b:00.0"
    machine.write(facts)
    assert codes(source.read().gpus[3]) == ["not_answering"]  # not touched again so soon
    clock.now += nvml.RETRY_SECONDS
    assert source.read().gpus[3]["placeable"]


def test_a_card_that_stops_answering_keeps_its_class_and_its_instances(machine: Machine) -> None:
    """Its engines are still on it, and its class may stand on the memory alone."""
    card = fake_nvml.card(0, "NVIDIA GeForce RTX 4090", "24564 1 300", "8.9")
    source = nvml.Nvml()
    machine.write(fake_nvml.machine(card))
    before = source.read().gpus[0]
    machine.write(fake_nvml.machine(card), **{"0.memory": "!15"})
    lost = source.read().gpus[0]
    assert codes(lost) == ["lost"]
    machine.write(fake_nvml.machine(card), **{"0.handle": "!999"})
    gone = source.read().gpus[0]
    assert codes(gone) == ["not_answering"]
    for key in ("uuid", "bus", "name", "class", "memory_total_mib", "compute_capability"):
        assert before[key] == lost[key] == gone[key]
    assert lost["memory_used_mib"] is None

    machine.write(fake_nvml.with_mig())
    source = nvml.Nvml()
    assert placeable(source) == [1, 2, 3]
    machine.write(fake_nvml.with_mig(), **{"0.handle": "!15"})
    units = source.read().gpus[2:]
    assert [unit["class"] for unit in units] == ["h100-sxm-80gb-mig-1g.10gb"] * 2
    assert [(codes(unit), unit["placeable"]) for unit in units] == [(["lost"], False)] * 2


def test_what_was_known_of_a_place_is_not_said_of_another_card(machine: Machine) -> None:
    """A card that is off the bus after a reboot moves the numbers of those behind it."""
    cards = [fake_nvml.card(i) for i in range(3)]
    source = nvml.Nvml()
    machine.write(fake_nvml.machine(*cards))
    source.read()
    moved = {f"1.{key.partition('.')[2]}": value for key, value in cards[2].items()}
    machine.write(fake_nvml.machine(cards[0], moved), count=3, **{"2.handle": "!15"})
    gpus = source.read().gpus
    assert [(gpu["uuid"] or "")[:12] for gpu in gpus] == ["GPU-00000000", "GPU-00000002", ""]


def test_a_library_that_hangs_at_once_ends_at_the_deadline(machine: Machine) -> None:
    machine.write({"init": "hang"})
    found = nvml.Nvml().read(deadline_seconds=0.5)
    assert (found.source, found.gpus) == ("unavailable", [])
    assert "did not answer within 0.5 s" in (found.error or "")


def test_a_library_that_ends_the_process_at_one_card_hides_no_other(machine: Machine) -> None:
    machine.write(fake_nvml.dgx_h100(), **{"3.memory": "die"})
    found = nvml.read()
    assert [gpu["index"] for gpu in found.gpus if gpu["placeable"]] == [0, 1, 2, 4, 5, 6, 7]
    assert found.gpus[3]["problems"][0]["text"] == (
        "the driver's library crashes at this card (signal 6); it is left alone for 10 minutes"
    )
    assert found.gpus[3]["uuid"] == "GPU-00000003-aaaa-bbbb-cccc-dddddddddddd"


def test_three_sick_cards_of_both_kinds_leave_the_rest(machine: Machine) -> None:
    machine.write(fake_nvml.dgx_h100(), **{"0.memory": "die", "3.cc": "hang", "7.handle": "die"})
    assert placeable(nvml.Nvml(), deadline_seconds=1.5) == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("after", ["begin", "nothing"])
def test_a_reader_that_is_killed_once_blames_no_card(tmp_path: Path, machine: Machine, after: str) -> None:
    """By the kernel for want of memory, or by hand."""
    machine.write(fake_nvml.dgx_h100())
    script = tmp_path / "killed_once.py"
    script.write_text(
        "import os, pathlib, runpy, signal, sys\n"
        f"mark = pathlib.Path({str(tmp_path / 'mark')!r})\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        f"    if {after!r} == 'begin':\n"
        '        print(\'{"kind": "head", "count": 8}\\n{"kind": "begin", "index": 2}\', flush=True)\n'
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sys.argv[0] = {str(nvml.READER)!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    assert placeable(nvml.Nvml([sys.executable, str(script)])) == list(range(8))


@pytest.fixture
def unkillable() -> Iterator[subprocess.Popen[bytes]]:
    """As a process in state D: it was killed, and it is still there."""
    with subprocess.Popen(["sleep", "100"]) as child:
        yield child
        child.kill()


def test_a_card_is_not_touched_while_who_touched_it_cannot_be_killed(
    machine: Machine, unkillable: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    source = nvml.Nvml(clock=clock)
    machine.write(fake_nvml.dgx_h100(), **{"3.memory": "hang"})
    monkeypatch.setattr(program, "_abandoned", {})
    assert 3 not in placeable(source, deadline_seconds=1.5)
    program._abandoned["nvml without []"] = unkillable
    clock.now += nvml.RETRY_SECONDS
    machine.write(fake_nvml.dgx_h100())
    assert placeable(source) == [0, 1, 2, 4, 5, 6, 7]
    unkillable.kill()
    unkillable.wait()
    assert placeable(source) == list(range(8))


def test_a_child_that_crashes_or_lies_is_told(tmp_path: Path) -> None:
    for text in ("", "no json\n", '{"kind": "card"}\n', "[]\n", '{"kind": "head", "count": 0}\n'):
        script = tmp_path / "child.py"
        script.write_text(f"import sys; sys.stdout.write({text!r}); sys.exit(3)")
        found = nvml.Nvml([sys.executable, str(script)]).read()
        assert found.gpus == []


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "head", "count": "many"}',
        '{"kind": "head", "count": -1}',
        '{"kind": "head", "count": null}',
        '{"kind": "head", "count": 1}\n{"kind": "card", "index": []}',
        '{"kind": "head", "count": 1}\n{"kind": "begin"}',
        "\x00\xff" * 100,
    ],
)
def test_no_line_of_a_child_is_believed_blindly(tmp_path: Path, line: str) -> None:
    script = tmp_path / "child.py"
    script.write_text(f"import sys; sys.stdout.buffer.write({line.encode('latin-1')!r} + b'\\n')")
    found = nvml.Nvml([sys.executable, str(script)]).read()
    assert all(not gpu["placeable"] for gpu in found.gpus)
