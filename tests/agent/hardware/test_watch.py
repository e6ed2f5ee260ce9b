"""Looks at the machine: often where that costs little, at once when a card leaves the bus, never in the loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_client.config import DISCOVERY_SECONDS
from agent_client.hardware import Discovery, DiscoveryOptions, Inventory, Watch, watch
from agent_client.hardware.presence import present
from tests.agent.hardware.machine import Machine, codes, needs_gcc
from tests.e2e.harness import PATIENCE
from tests.support import fake_nvml

LOST = {"3.memory": "!15"}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch, fake_nvml.build(tmp_path / "library"))
    machine.write(cards())
    return machine


def cards(**changes: object) -> dict[str, object]:
    return fake_nvml.machine(*(fake_nvml.card(i) for i in range(4))) | changes


@pytest.fixture
async def eyes(tmp_path: Path, machine: Machine) -> AsyncIterator[Watch]:
    """As the agent has them, with its own default pause."""
    options = DiscoveryOptions(
        node_id="n", ib_root=tmp_path / "no-ib", kernel_log=tmp_path / "no-log", steady_seconds=30.0
    )
    eyes = Watch(Discovery(options), pause_seconds=DISCOVERY_SECONDS)
    eyes.look()
    running = asyncio.create_task(eyes.run(lambda: None))
    yield eyes
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def problems(eyes: Watch, index: int) -> list[str]:
    assert eyes.inventory
    return codes(eyes.inventory.to_json()["gpus"][index])


@needs_gcc
@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(LOST, "lost", id="raises"),
        # Eight of the ten seconds are spent in waiting for the card, which needs a machine with nothing else to do.
        pytest.param({"3.memory": "hang"}, "not_answering", id="hangs", marks=pytest.mark.heavy),
    ],
)
async def test_a_card_that_falls_off_is_unplaceable_within_ten_seconds_and_the_loop_never_waits(
    eyes: Watch, machine: Machine, change: dict[str, object], code: str
) -> None:
    """Failures 11."""
    machine.write(cards(**change))
    began = last = time.monotonic()
    longest = 0.0
    while code not in problems(eyes, 3):
        assert time.monotonic() - began < 10 * PATIENCE
        await asyncio.sleep(0.02)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < 1.0 * PATIENCE
    assert eyes.inventory
    gpus = eyes.inventory.to_json()["gpus"]
    assert [gpu["placeable"] for gpu in gpus] == [True, True, True, False]


class Eyes:
    """Looks that take no time, counted; the bus is a folder."""

    def __init__(self, folder: Path, *buses: str) -> None:
        self.folder, self.buses, self.looks = folder, buses, 0
        for bus in buses:
            (folder / bus).mkdir()
            (folder / bus / "config").write_bytes(b"\xde\x10" + bytes(62))

    def look(self) -> Inventory:
        self.looks += 1
        return Inventory(data={"gpus": [{"bus": bus, "seen": self.looks} for bus in self.buses]})


@pytest.mark.parametrize("how", ["reads ffff", "is gone"])
async def test_a_card_that_leaves_the_bus_is_looked_at_once_however_seldom_looks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(watch, "GLANCE_SECONDS", 0.02)
    eyes = Eyes(tmp_path, "0000:18:00.0", "0000:29:00.0")
    looking: Any = Watch(eyes, pause_seconds=3600.0, devices=tmp_path)  # type: ignore[arg-type]
    looking.look()
    changed = asyncio.Event()
    running = asyncio.create_task(looking.run(changed.set))
    await asyncio.sleep(0.2)
    assert eyes.looks == 1
    config = tmp_path / "0000:29:00.0" / "config"
    if how == "is gone":
        config.unlink()
    else:
        config.write_bytes(b"\xff" * 64)
    await asyncio.wait_for(changed.wait(), 5 * PATIENCE)
    await asyncio.sleep(0.2)
    assert eyes.looks == 2  # once for it, not again and again
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_somebody_elses_look_has_found_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed engine's card is looked at then: the next look sees nothing new any more."""
    eyes = Eyes(tmp_path)
    monkeypatch.setattr(eyes, "look", lambda: Inventory(data={"gpus": [{"uuid": found[-1]}]}))
    found = ["GPU-1"]
    looking: Any = Watch(eyes, pause_seconds=0.05)  # type: ignore[arg-type]
    looking.look()
    changed = asyncio.Event()
    running = asyncio.create_task(looking.run(changed.set))
    await asyncio.sleep(0)
    found.append("GPU-2")
    looking.look()
    await asyncio.wait_for(changed.wait(), 5 * PATIENCE)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_looks_that_cost_much_are_seldom() -> None:
    assert [watch.pause(took, 4.0) for took in (0.05, 0.1, 0.5, 5.0)] == [4.0, 4.0, 10.0, 30.0]
    assert watch.pause(0.1, 60.0) == 60.0


def test_a_device_that_nobody_answers_for_is_not_there(tmp_path: Path) -> None:
    Eyes(tmp_path, "a", "b")
    (tmp_path / "b" / "config").write_bytes(b"\xff" * 64)
    assert present(["a", "b", "c", "../a\0"], tmp_path) == {"a"}


@needs_gcc
def test_a_warning_is_not_told_sooner_because_looks_are_close_together(tmp_path: Path, machine: Machine) -> None:
    options = {"node_id": "n", "ib_root": tmp_path / "no-ib", "kernel_log": tmp_path / "no-log"}
    for steady, told in ((0.0, True), (3600.0, False)):
        eyes = Discovery(DiscoveryOptions(**options, steady_seconds=steady))  # type: ignore[arg-type]
        machine.write(cards())
        eyes.look()
        machine.write(cards(**{"2.throttle": 0x8}))
        found = [codes(eyes.look().to_json()["gpus"][2]) for _ in range(3)]
        assert any("hw_slowdown" in each for each in found) is told
        machine.write(cards(**LOST))
        assert "lost" in codes(eyes.look().to_json()["gpus"][3])
        machine.write(cards())
        assert "lost" in codes(eyes.look().to_json()["gpus"][3])  # one good answer makes no good card
