"""The pump compares a stream with what it read of it, never with what it read before the stream was there."""

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.agents import pump as module
from fleet.agents.pump import Pump


class Consumer:
    def __init__(self, session_id: int) -> None:
        self.admission = SimpleNamespace(node_id=7, session_id=session_id)
        self.superseded: list[str] = []
        self.delivered: list[Any] = []

    async def supersede(self, reason: str) -> None:
        self.superseded.append(reason)

    async def deliver(self, orders: list[Any]) -> None:
        self.delivered.append(orders)


def pump_with(*consumers: Consumer) -> Pump:
    pump = Pump.__new__(Pump)
    pump._consumers = {consumer.admission.node_id: consumer for consumer in consumers}  # type: ignore[misc]
    return pump


async def test_a_stream_that_came_during_the_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Consumer(1), Consumer(2)
    pump = pump_with(old)

    async def read(function: Any, node_ids: set[int]) -> Any:
        pump._consumers[7] = new  # type: ignore[assignment]
        return {}, {7: 1}  # as the database was before the newer registration

    monkeypatch.setattr(module, "in_database", read)
    await pump._deliver_to({7})
    assert new.superseded == []


@pytest.mark.parametrize(("sessions", "reason"), [({7: 3}, "another stream"), ({}, "the node was deleted")])
async def test_a_stream_that_lost_its_node_is_told(
    monkeypatch: pytest.MonkeyPatch, sessions: dict[int, int], reason: str
) -> None:
    consumer = Consumer(2)
    pump = pump_with(consumer)

    async def read(function: Any, node_ids: set[int]) -> Any:
        return {}, sessions

    monkeypatch.setattr(module, "in_database", read)
    await pump._deliver_to({7})
    assert reason in consumer.superseded[0]
