"""The routes in memory: immutable, read from a JSON file that is replaced whole. The last good one goes on serving."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from routing.domain.limits import Limits
from routing.domain.timers import Timers
from routing.keys import Key

FORMAT_VERSION = 1
#: So old the feed's last word may be that there is no other key.
FRESH_SECONDS = 10.0

N = TypeVar("N", int, float)


class TableError(ValueError):
    """cannot use the routes file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    id: str
    address: str
    port: int
    key: str | None = field(default=None, repr=False)
    weight: int = 1
    draining: bool = False
    model: str | None = None  # the name it serves, when that is not the requested one

    @property
    def authority(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    name: str
    aliases: tuple[str, ...] = ()
    state: str = "ready"  # ready, loading, down
    reason: str = ""
    retry_after: int = 5
    endpoints: tuple[Endpoint, ...] = ()
    timers: Timers = field(default_factory=Timers)
    concurrency: int = 0  # requests at once over all replicas; 0: no limit
    queue: int = 100  # how many more may wait for a place
    queue_seconds: float = 30.0  # and for how long
    hold_seconds: float = 0.0  # how long a request waits for a model that is loading
    affinity: bool = True  # requests with the same beginning go to the same replica
    sticky: bytes = b""  # requests with the same value of this header, in lower case, do

    @property
    def routable(self) -> bool:
        """Whether there is a replica for a new request."""
        for endpoint in self.endpoints:  # noqa: SIM110  (any() with a generator takes three times as long)
            if not endpoint.draining:
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    revision: int = 0
    routes: Mapping[str, Route] = field(default_factory=dict)  # by name and alias
    keys: Mapping[str, Key] = field(default_factory=dict)  # by prefix
    auth: bool = True
    keys_complete: bool = True
    loaded: bool = True  # False: there has been no file yet


def load(path: Path) -> RoutingTable:
    """Read and check the file; raises TableError."""
    try:
        return parse(msgspec.json.decode(path.read_bytes()))
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise TableError(f"cannot read {path}: {error}") from None


def mark_of(path: Path) -> Path:
    """A file that the feed touches whenever the routes file says what the database does."""
    return path.with_suffix(".fresh")


def is_fresh(path: Path, now: float) -> bool:
    """Whether a key that the file does not name is none. Without a feed the file alone decides."""
    try:
        return now - mark_of(path).stat().st_mtime < FRESH_SECONDS
    except OSError:
        return True


def parse(data: Any) -> RoutingTable:
    if not isinstance(data, dict) or data.get("version") != FORMAT_VERSION:
        raise TableError(f"cannot use the routes: version {FORMAT_VERSION} is needed")
    try:
        routes: dict[str, Route] = {}
        for item in data.get("models", []):
            route = _route(item)
            for name in (route.name, *route.aliases):
                routes.setdefault(name, route)
        keys = {item["prefix"]: _key(item) for item in data.get("keys", [])}
        return RoutingTable(
            revision=int(data.get("revision", 0)),
            routes=routes,
            keys=keys,
            auth=bool(data.get("auth", True)),
            keys_complete=bool(data.get("keys_complete", True)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TableError(f"cannot use the routes: {type(error).__name__}: {error}") from None


def _route(item: Mapping[str, Any]) -> Route:
    return Route(
        name=item["name"],
        aliases=tuple(item.get("aliases", ())),
        state=item.get("state", "ready"),
        reason=item.get("reason", ""),
        retry_after=int(item.get("retry_after", 5)),
        endpoints=tuple(_endpoint(each) for each in item.get("endpoints", ())),
        timers=_timers(item.get("timers", {})),
        concurrency=_least(item, "concurrency", 0),
        queue=_least(item, "queue", 100),
        queue_seconds=_least(item, "queue_seconds", 30.0),
        hold_seconds=_least(item, "hold_seconds", 0.0),
        affinity=bool(item.get("affinity", True)),
        sticky=str(item.get("sticky") or "").lower().encode("ascii"),
    )


def _least(item: Mapping[str, Any], name: str, default: N) -> N:
    """A number that is not negative."""
    value = type(default)(item.get(name, default))
    if value < 0:
        raise ValueError(f"{name} must not be negative")
    return value


def _timers(item: Mapping[str, Any]) -> Timers:
    seconds = {name: None if value is None and name != "connect" else float(value) for name, value in item.items()}
    if wrong := [name for name, value in seconds.items() if value is not None and not 0 < value < 1e6]:
        raise ValueError(f"timers.{wrong[0]} must be a number of seconds")
    return Timers(**seconds)  # type: ignore[arg-type]  # an unknown name is a TypeError, which says so


def _endpoint(item: Mapping[str, Any]) -> Endpoint:
    parts = urlsplit(item["url"])
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{item['url']!r} is no http URL")
    return Endpoint(
        id=item["id"],
        address=parts.hostname,
        port=parts.port or 80,
        key=item.get("key"),
        weight=int(item.get("weight", 1)),
        draining=bool(item.get("draining", False)),
        model=item.get("model"),
    )


def _key(item: Mapping[str, Any]) -> Key:
    models, limits = item.get("models"), item.get("limits") or {}
    return Key(
        id=str(item.get("id", item["prefix"])),
        name=item["name"],
        prefix=item["prefix"],
        sha256=item["sha256"],
        models=None if models is None else frozenset(models),
        expires=_moment(item.get("expires")),
        limits=Limits(**{name: None if value is None else int(value) for name, value in limits.items()}),
        used_tokens=int(item.get("used_tokens", 0)),
    )


def _moment(given: str | None) -> datetime | None:
    """A date means its beginning; without a zone it is UTC."""
    if not given:
        return None
    moment = datetime.fromisoformat(given)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
