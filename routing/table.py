"""The routes in memory: immutable, read from a JSON file that is replaced whole. The last good one goes on serving."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from routing.domain.timers import Timers
from routing.keys import Key

FORMAT_VERSION = 1


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
    )


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
    models = item.get("models")
    return Key(
        id=str(item.get("id", item["prefix"])),
        name=item["name"],
        prefix=item["prefix"],
        sha256=item["sha256"],
        models=None if models is None else frozenset(models),
        expires=_moment(item.get("expires")),
    )


def _moment(given: str | None) -> datetime | None:
    """A date means its beginning; without a zone it is UTC."""
    if not given:
        return None
    moment = datetime.fromisoformat(given)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
