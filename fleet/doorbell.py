"""«Look again» hints. Losing one costs only time: every listener also looks by itself.

Each rings after the transaction's commit, never raises, and never holds a request for long.
"""

import json
import logging
from collections.abc import Iterable
from functools import cache, partial

import redis
from django.conf import settings
from django.db import transaction

NODES_CHANNEL = "llmgw:nodes"
ROUTES_CHANNEL = "llmgw:routes"

log = logging.getLogger(__name__)


@cache
def _client() -> redis.Redis:
    # A doorbell must not wait for a dead broker: half a second, one try.
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=0.5, socket_timeout=0.5)


def ring_nodes(node_ids: Iterable[int]) -> None:
    """The desired state of these nodes has changed: their listeners read the database."""
    transaction.on_commit(partial(_publish, NODES_CHANNEL, sorted(set(node_ids))))


def ring_routes() -> None:
    """What is routable, or who may ask, has changed: the routers' feeds read the database."""
    transaction.on_commit(partial(_publish, ROUTES_CHANNEL, []))


def ring_reconcile() -> None:
    """There may be work for the reconciler."""
    transaction.on_commit(_queue_reconcile)


def _publish(channel: str, payload: list[int]) -> None:
    try:
        _client().publish(channel, json.dumps(payload))
    except (redis.RedisError, OSError) as error:
        log.warning("doorbell.lost channel=%s error=%s", channel, type(error).__name__)


def _queue_reconcile() -> None:
    from celery import current_app

    try:
        hurried = {"whole": False}
        current_app.send_task("fleet.tasks.reconcile", kwargs=hurried, expires=30, retry=False, ignore_result=True)
    except Exception as error:  # kombu raises many kinds when the broker is away; beat's period is the safety net
        log.warning("doorbell.lost channel=reconcile error=%s", type(error).__name__)
