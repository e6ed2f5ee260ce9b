"""The Celery app and its beat schedule: the only place where periods are set."""

import os

from celery import Celery
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "llmgw_site.settings")


def broker_url(redis_url: str) -> str:
    """kombu's spelling of a Redis URL; a unix socket is `redis+socket://`."""
    return redis_url.replace("unix://", "redis+socket://", 1) if redis_url.startswith("unix://") else redis_url


app = Celery("llmgw")
app.conf.update(
    broker_url=broker_url(settings.REDIS_URL),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,  # come back after any outage
    broker_transport_options={
        "socket_connect_timeout": 1,
        "socket_timeout": 10,
        # Of a publisher alone: kombu would pause 6 s in a request (the worker's own patience is set above).
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0,
    },
    task_ignore_result=True,
    task_publish_retry=False,  # a lost doorbell costs one period; a request must not wait for a dead broker
    task_acks_late=False,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
    timezone="UTC",
    beat_schedule={
        name: {"task": f"fleet.tasks.{name}", "schedule": period, "options": {"expires": period}}
        for name, period in settings.PERIODS.items()
    },
)
app.autodiscover_tasks(["fleet"])
