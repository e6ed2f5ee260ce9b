"""Writes the routes file that router children read, and takes in what they tell: usage, who is left out, and which
engines give tokens. With no database the last file stays, and the usage waits on disk."""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, transaction
from django.db.models import Sum

from agent_client.profile import Catalog
from fleet.endpoints import ROUTES_CHANNEL, FlowWord, hear_flows, published
from routing.domain import limits
from routing.models import ApiKey, Ejection, Usage
from routing.table import FORMAT_VERSION, mark_of

log = logging.getLogger("routing")

POLL_SECONDS = 1.0
#: How often the month's tokens are summed up: each sum that changed is a new routes file.
USED_SECONDS = 30.0
#: How often the control plane hears which engines give tokens; a hung one is told from a busy one with it.
FLOWS_SECONDS = 10.0
#: What a child said longer ago is of one that has ended.
STATE_FRESH_SECONDS = 5.0
BATCH_ROWS = 1000


def document(used: Mapping[int, int] | None = None) -> dict[str, Any]:
    """The routes as the database has them now. `used`: tokens of this month by key."""
    keys = [_key(key, (used or {}).get(key.pk, 0)) for key in ApiKey.objects.filter(revoked_at__isnull=True)]
    return {"version": FORMAT_VERSION, "auth": True, "keys_complete": True, "models": published(), "keys": keys}


def used_tokens(now: datetime) -> dict[int, int]:
    """Tokens of this month by key, for those whose month is limited."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    rows = (
        Usage.objects.filter(key__tokens_per_month__isnull=False, at__gte=month)
        .values_list("key")
        .annotate(prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens"))
        .order_by()
    )
    return {key: (prompt or 0) + (completion or 0) for key, prompt, completion in rows if key is not None}


def _key(key: ApiKey, used: int) -> dict[str, Any]:
    limited = {name: value for name in limits.NAMES if (value := getattr(key, name)) is not None}
    return {
        "id": str(key.pk),
        "name": key.name,
        "prefix": key.prefix,
        "sha256": key.sha256,
        "models": key.allowed_models,
        "expires": key.expires_at.isoformat() if key.expires_at else None,
        "limits": limited,
        "used_tokens": used if "tokens_per_month" in limited else 0,
    }


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
                **entry.routing.to_dict(),
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
            "limits": dict(key.limits),
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

    def __init__(self, path: Path, usage_dir: Path, states_dir: Path, on_change: Callable[[], None]) -> None:
        """`states_dir`: where children say how they are."""
        super().__init__(name="feed", daemon=True)
        self._path = path
        self._usage_dir = usage_dir
        self._on_change = on_change
        self._states_dir = states_dir
        self._used: dict[int, int] = {}
        self._used_at = -USED_SECONDS
        self._flows_at = -FLOWS_SECONDS
        self._look = threading.Event()
        self._ears = threading.Thread(target=self._listen, name="feed-ears", daemon=True)

    def run(self) -> None:
        self._ears.start()
        while True:
            for work in (
                self._publish,
                lambda: ingest(self._usage_dir),
                lambda: note_ejections(self._states_dir),
                self._tell_flows,
            ):
                try:
                    close_old_connections()
                    work()
                except DatabaseError as error:
                    log.warning("feed.database_away error=%s", type(error).__name__)
                except OSError as error:
                    log.error("feed.disk path=%s error=%s", error.filename, error.strerror)
                except Exception:
                    log.exception("feed.failed")
            self._look.wait(POLL_SECONDS)
            self._look.clear()

    def finish(self) -> None:
        """Take in what the children wrote as their last; what does not go in now waits on disk."""
        with contextlib.suppress(DatabaseError, OSError):
            close_old_connections()
            ingest(self._usage_dir)

    def _publish(self) -> None:
        if time.monotonic() - self._used_at >= USED_SECONDS:
            self._used, self._used_at = used_tokens(datetime.now(UTC)), time.monotonic()
        changed = write(self._path, document(self._used))
        mark_of(self._path).touch()
        if changed:
            self._on_change()

    def _tell_flows(self) -> None:
        now = time.monotonic()
        if now - self._flows_at >= FLOWS_SECONDS:
            self._flows_at = now
            hear_flows(flows(self._states_dir, now))

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
    known: set[int] | None = None
    for path in sorted(folder.glob("*.ready")) if folder.is_dir() else ():
        known = set(ApiKey.objects.values_list("pk", flat=True)) if known is None else known
        rows, bad = [], 0
        for line in path.read_bytes().splitlines():
            try:
                rows.append(_usage(json.loads(line), known))
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                bad += 1
                log.error("usage.bad_row file=%s error=%s", path.name, type(error).__name__)
        with transaction.atomic():
            Usage.objects.bulk_create(rows, batch_size=BATCH_ROWS, ignore_conflicts=True)
        # A row that nobody can read is for people: it must neither be lost nor stand in the way of the others.
        path.rename(path.with_suffix(".bad")) if bad else path.unlink(missing_ok=True)
        count += len(rows)
    return count


def _usage(row: dict[str, Any], keys: set[int]) -> Usage:
    key = int(row["key"]) if str(row.get("key") or "").isdecimal() else None
    return Usage(
        uid=UUID(str(row["uid"])),
        at=datetime.fromtimestamp(row["at"], UTC),
        key_id=key if key in keys else None,
        model=row["model"][:127],
        endpoint=row["endpoint"][:200],
        path=row["path"][:100],
        status=row["status"],
        completed=bool(row["completed"]),
        prompt_tokens=_bounded(row["prompt_tokens"]),
        completion_tokens=_bounded(row["completion_tokens"]),
        seconds=row["seconds"],
    )


def _bounded(count: int | None) -> int | None:
    """An engine may say any number; a database takes 63 bits."""
    return count if count is None or 0 <= count < 2**63 else None


def note_ejections(folder: Path) -> None:
    """Whom this machine's children leave out now, in place of what was there."""
    host = socket.gethostname()
    found: dict[tuple[str, str], Ejection] = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            state = json.loads(path.read_bytes())
            rows = [_ejection(f"{host}/{path.stem}", row) for row in state["ejections"]]
        except (ValueError, KeyError, TypeError):
            continue  # half written, or by another version
        found |= {(row.router, row.endpoint): row for row in rows}
    shown = list(Ejection.objects.filter(router__startswith=f"{host}/"))
    if not found and not shown:
        return
    told = ("reason", "failures", "until")
    if {(r.router, r.endpoint, r.reason, r.failures) for r in shown} == {
        (r.router, r.endpoint, r.reason, r.failures) for r in found.values()
    }:
        return
    with transaction.atomic():
        Ejection.objects.filter(pk__in=[r.pk for r in shown if (r.router, r.endpoint) not in found]).delete()
        Ejection.objects.bulk_create(
            found.values(), update_conflicts=True, unique_fields=["router", "endpoint"], update_fields=told
        )


def flows(folder: Path, now: float) -> list[FlowWord]:
    """What this machine's children have under way, all of them together. `now`: the monotonic clock that they share."""
    in_flight: dict[str, int] = defaultdict(int)
    moved_at: dict[str, float] = {}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            state = json.loads(path.read_bytes())
            fresh = 0 <= now - state["at"] <= STATE_FRESH_SECONDS
            rows = [(str(row["endpoint"]), int(row["in_flight"]), float(row["moved_at"])) for row in state["flows"]]
        except (ValueError, KeyError, TypeError):
            continue  # half written, or by another version
        for endpoint, count, moved in rows if fresh else ():
            in_flight[endpoint] += count
            moved_at[endpoint] = max(moved, moved_at.get(endpoint, moved))
    return [
        FlowWord(endpoint=endpoint, in_flight=count, silent_seconds=max(0.0, now - moved_at[endpoint]))
        for endpoint, count in in_flight.items()
    ]


def _ejection(router: str, row: dict[str, Any]) -> Ejection:
    return Ejection(
        router=router[:100],
        endpoint=row["endpoint"][:200],
        model=row["model"][:127],
        reason=row["reason"][:200],
        failures=row["failures"],
        since=datetime.fromtimestamp(row["since"], UTC),
        until=datetime.fromtimestamp(row["until"], UTC),
    )
