"""NVML that hangs, dies or is killed: the card it happens at is named and left out, all others stay."""

import sys
from pathlib import Path

from agent_client.hardware import nvml
from tests.agent.hardware.machine import Machine, codes, needs_gcc
from tests.support import fake_nvml

pytestmark = needs_gcc


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_hanging_card_is_left_out_and_the_others_stay(machine: Machine) -> None:
    facts = fake_nvml.dgx_h100()
    clock = Clock()
    source = nvml.Nvml(clock=clock)
    fake_nvml.write(machine.file, facts)
    assert len(source.read().gpus) == 8
    fake_nvml.write(machine.file, facts | {"3.memory": "hang"})
    found = source.read(deadline_seconds=1.5)
    assert [gpu["index"] for gpu in found.gpus if gpu["placeable"]] == [0, 1, 2, 4, 5, 6, 7]
    assert codes(found.gpus[3]) == ["not_answering"]
    assert found.gpus[3]["uuid"] == "GPU-00000003-aaaa-bbbb-cccc-dddddddddddd"
    assert found.gpus[3]["bus"] == "0000:4b:00.0"
    fake_nvml.write(machine.file, facts)
    assert codes(source.read().gpus[3]) == ["not_answering"]  # not touched again so soon
    clock.now += nvml.RETRY_SECONDS
    assert source.read().gpus[3]["placeable"]


def test_a_library_that_hangs_at_once_ends_at_the_deadline(machine: Machine) -> None:
    fake_nvml.write(machine.file, {"init": "hang"})
    found = nvml.Nvml().read(deadline_seconds=0.5)
    assert (found.source, found.gpus) == ("unavailable", [])
    assert "did not answer within 0.5 s" in (found.error or "")


def test_a_child_that_crashes_or_lies_is_told(tmp_path: Path) -> None:
    for text in ("", "no json\n", '{"kind": "card"}\n', "[]\n", '{"kind": "head", "count": 0}\n'):
        script = tmp_path / "child.py"
        script.write_text(f"import sys; sys.stdout.write({text!r}); sys.exit(3)")
        found = nvml.Nvml([sys.executable, str(script)]).read()
        assert found.gpus == []
