"""Writes the routes file that router children read and takes their usage in; with no database the last file stays."""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, transaction

from agent_client.profile import Catalog
from fleet.endpoints import ROUTES_CHANNEL, published
from routing.models import ApiKey, Usage
from routing.table import FORMAT_VERSION

log = logging.getLogger("routing")

POLL_SECONDS = 1.0


def document() -> dict[str, Any]:
    """The routes as the database has them now."""
    keys = [
        {
            "id": str(key.pk),
            "name": key.name,
            "prefix": key.prefix,
            "sha256": key.sha256,
            "models": key.allowed_models,
            "expires": key.expires_at.isoformat() if key.expires_at else None,
        }
        for key in ApiKey.objects.filter(revoked_at__isnull=True)
    ]
    return {"version": FORMAT_VERSION, "auth": True, "keys_complete": True, "models": published(), "keys": keys}


def document_of_catalog(catalog: Catalog) -> dict[str, Any]:
    """The routes of a router-only run: static endpoints and keys from a file."""
    models = []
    for entry in catalog.models:
        endpoints = [
            {"id": f"{entry.name}@{e.url}", "url": e.url, "weight": e.weight, "model": e.model}
            for e in entry.endpoints or ()
        ]
        reason = "" if endpoints else "it has a profile, which only a control plane can run"
        state = "ready" if endpoints else "down"
        models.append(
            {
                "name": entry.name,
                "aliases": list(entry.aliases),
                "state": state,
                "reason": reason,
                "endpoints": endpoints,
            }
        )
    keys = [
        {
            "id": key.prefix,
            "name": key.name,
            "prefix": key.prefix,
            "sha256": key.sha256,
            "models": None if key.models is None else list(key.models),
            "expires": key.expires.isoformat() if key.expires else None,
        }
        for key in catalog.keys
    ]
    return {"version": FORMAT_VERSION, "auth": True, "keys_complete": True, "models": models, "keys": keys}


def write(path: Path, data: dict[str, Any]) -> bool:
    """Replace the file whole, readable by its owner alone (it holds engine keys); whether it changed."""
    text = json.dumps(data, sort_keys=True)
    with contextlib.suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
    return True


class Feed(threading.Thread):
    """Looks when rung and once a second; tells the children when the file changed."""

    def __init__(self, path: Path, usage_dir: Path, on_change: Callable[[], None]) -> None:
        super().__init__(name="feed", daemon=True)
        self._path = path
        self._usage_dir = usage_dir
        self._on_change = on_change
        self._look = threading.Event()
        self._ears = threading.Thread(target=self._listen, name="feed-ears", daemon=True)

    def run(self) -> None:
        self._ears.start()
        while True:
            try:
                close_old_connections()
                if write(self._path, document()):
                    self._on_change()
                ingest(self._usage_dir)
            except DatabaseError as error:
                log.warning("feed.database_away error=%s", type(error).__name__)
            except OSError as error:
                log.error("feed.unwritten path=%s error=%s", self._path, error.strerror)
            except Exception:
                log.exception("feed.failed")
            self._look.wait(POLL_SECONDS)
            self._look.clear()

    def _listen(self) -> None:
        while True:
            try:
                client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2)
                with client.pubsub(ignore_subscribe_messages=True) as subscription:
                    subscription.subscribe(ROUTES_CHANNEL)
                    for _ in subscription.listen():
                        self._look.set()
            except (redis.RedisError, OSError, ValueError):
                threading.Event().wait(1.0)  # the poll goes on meanwhile


def ingest(folder: Path) -> int:
    """Take in whole spool files; a row is stored once however often its file is read."""
    count = 0
    for path in sorted(folder.glob("*.ready")) if folder.is_dir() else ():
        rows = []
        known = set(ApiKey.objects.values_list("pk", flat=True))
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(_usage(json.loads(line), known))
            except (ValueError, KeyError, TypeError) as error:
                log.error("usage.bad_row file=%s error=%s", path.name, error)
        with transaction.atomic():
            Usage.objects.bulk_create(rows, ignore_conflicts=True)
        path.unlink(missing_ok=True)
        count += len(rows)
    return count


def _usage(row: dict[str, Any], keys: set[int]) -> Usage:
    key = int(row["key"]) if str(row.get("key") or "").isdecimal() else None
    return Usage(
        uid=row["uid"],
        at=datetime.fromtimestamp(row["at"], UTC),
        key_id=key if key in keys else None,
        model=row["model"][:127],
        endpoint=row["endpoint"][:200],
        path=row["path"][:100],
        status=row["status"],
        completed=row["completed"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        seconds=row["seconds"],
    )
