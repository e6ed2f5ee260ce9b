"""Thin Celery tasks around services; periods stand in llmgw_site.celery."""

import os
import socket
import uuid
from datetime import timedelta

from celery import shared_task
from django.db.models import F

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import clock
from fleet.domain.states import CommandState
from fleet.models import AgentSession, Command, Event, Listener, Shard
from fleet.services import liveness, reconciler

EVENTS_KEPT = timedelta(days=90)
ENDED_KEPT = timedelta(days=7)
ATTEMPTS_KEPT = 20


@shared_task
def reconcile(whole: bool = True) -> None:
    """One tick: by period over the whole fleet, at a doorbell over what is not settled.

    When another is under way, one more follows shortly: it may have read before the ring.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    if reconciler.run(holder=holder, now=clock.now(), whole=whole) is None:
        reconcile.apply_async(kwargs={"whole": whole}, countdown=0.3, expires=10)


@shared_task
def judge_nodes() -> None:
    liveness.run()


@shared_task
def housekeeping() -> None:
    """Old rows go; nothing that is still open does."""
    now = clock.now()
    Event.objects.filter(at__lt=now - EVENTS_KEPT).delete()
    AgentSession.objects.filter(closed_at__lt=now - ENDED_KEPT).delete()
    Command.objects.filter(answered_at__lt=now - ENDED_KEPT).exclude(state=CommandState.OPEN).delete()
    Listener.objects.filter(seen_at__lt=now - ENDED_KEPT).delete()
    # Of a crash loop the newest attempts stay; the first and the latest failure stand on the replica for ever.
    ended = Shard.objects.filter(state__in=ENDED_SHARD_STATES, state_at__lt=now - ENDED_KEPT)
    ended.filter(epoch__lt=F("replica__attempt") - ATTEMPTS_KEPT).delete()
