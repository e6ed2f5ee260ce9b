"""A doorbell is a hint: a dead broker costs a try or two and never a request's time."""

from typing import Any

import pytest
import redis

from fleet import doorbell


def test_a_dead_broker_is_tried_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal tries
        tries += 1
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(redis.connection.AbstractConnection, "connect", refuse)
    monkeypatch.setattr("celery.current_app.conf.broker_url", "redis://127.0.0.1:1/0")
    doorbell._queue_reconcile()
    assert 1 <= tries <= 2
    tries = 0
    doorbell._publish(doorbell.ROUTES_CHANNEL, [])
    assert 1 <= tries <= 2
