"""A catalog: models with either a profile or endpoints, and keys for router-only runs. DESIGN.md section 8."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any
from urllib.parse import urlsplit

from agent_client.profile.problems import Fields, Problem, ProfileError
from agent_client.profile.profile import Profile, read_profile
from agent_client.profile.routing import Routing, read_routing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,126}\Z")
_PREFIX = re.compile(r"[A-Za-z0-9]{8}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

#: Last words of addresses below a model's own: no model's name may end like them.
API_VERBS = ("rollout", "pause", "resume", "rollback", "plan")

#: What a key may be limited to, with the highest number of each: the router's counts have room for it.
KEY_LIMITS = {
    "requests_per_minute": 2**31 - 1,
    "tokens_per_minute": 10**14,
    "concurrency": 2**31 - 1,
    "tokens_per_month": 10**14,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticEndpoint:
    """A server that llmgw does not run. `model` is the name it serves when that differs from the entry's."""

    url: str
    weight: int = 1
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    aliases: tuple[str, ...] = ()
    replicas: int = 1
    profile: Profile | None = None
    endpoints: tuple[StaticEndpoint, ...] | None = None
    routing: Routing = field(default_factory=Routing)

    @property
    def served_names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that parse_entry reads back to an equal entry."""
        out: dict[str, Any] = {"name": self.name}
        if self.aliases:
            out["aliases"] = list(self.aliases)
        if self.profile is not None:
            out["replicas"] = self.replicas
            out["profile"] = self.profile.to_dict()
        if self.endpoints is not None:
            out["endpoints"] = [
                {"url": e.url, "weight": e.weight, **({"model": e.model} if e.model else {})} for e in self.endpoints
            ]
        if routing := self.routing.to_dict():
            out["routing"] = routing
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """A client's key in a router-only catalog; `sha256` is of the whole key, in hex."""

    name: str
    prefix: str
    sha256: str
    models: tuple[str, ...] | None = None
    expires: datetime | None = None
    limits: Mapping[str, int] = field(default_factory=dict)  # by names of KEY_LIMITS; what is missing has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    models: tuple[Entry, ...] = ()
    keys: tuple[KeyEntry, ...] = ()


def parse_entry(data: Any) -> Entry:
    """Read one model; raises ProfileError with every problem at once."""
    problems: list[Problem] = []
    entry = _entry(data, "model", problems)
    if problems or entry is None:
        raise ProfileError(problems)
    return entry


def parse_catalog(data: Any) -> Catalog:
    """Read a whole catalog; raises ProfileError with every problem at once."""
    problems: list[Problem] = []
    given = Fields({} if data is None else data, "catalog", problems)
    if not given.problems and not given.has("models"):  # a file that was emptied by mistake is no wish for no models
        hint = "an empty catalog is written `models: []`"
        given.note("missing", "models", "cannot use the catalog: it has no `models`", hint)
    entries = [_entry(item, f"models[{i}]", problems) for i, item in enumerate(_list(given, "models"))]
    keys = [_key(item, f"keys[{i}]", problems) for i, item in enumerate(_list(given, "keys"))]
    given.refuse_unknown()
    models = tuple(entry for entry in entries if entry is not None)
    _refuse_doubles([name for entry in models for name in entry.served_names], "model name", given)
    _refuse_doubles([key.prefix for key in keys if key], "key prefix", given)
    if problems:
        raise ProfileError(problems)
    return Catalog(models=models, keys=tuple(key for key in keys if key))


def _entry(data: Any, where: str, problems: list[Problem]) -> Entry | None:
    before = len(problems)
    given = Fields(data, where, problems)
    name = given.text("name", required=True)
    where = given.where = name or where
    aliases = given.texts("aliases")
    for word in (name, *aliases):
        if word and not _NAME.match(word):
            given.note(
                "bad_name",
                "name",
                f"cannot use the name {word[:80]!r}: a letter or digit, then letters, digits and . _ / : -, "
                "127 at most, are allowed",
            )
    if name.rpartition("/")[2] in API_VERBS:
        text = (
            f"cannot use the name {name!r}: in the API's addresses {name.rpartition('/')[2]} is what to do with a model"
        )
        given.note("bad_name", "name", text, "choose another name; it may be an alias")
    _refuse_doubles([name, *aliases], "model name", given)
    replicas = given.integer("replicas", 1, least=0, most=10_000)
    managed, static = given.has("profile"), given.has("endpoints")
    profile = read_profile(given.raw("profile"), f"{where}.profile", problems) if managed else None
    endpoints = _endpoints(given) if static else None
    routing = read_routing(given.raw("routing") or {}, f"{where}.routing", problems)
    given.raw("profile"), given.raw("endpoints")
    if managed == static:
        given.note(
            "profile_or_endpoints",
            "profile",
            f"cannot use {where}: it needs either `profile` (managed) or `endpoints` (a static list), "
            + ("not both" if managed else "and has neither"),
        )
    given.refuse_unknown()
    if len(problems) > before:
        return None
    return Entry(
        name=name,
        aliases=aliases,
        replicas=replicas if managed else 1,
        profile=profile,
        endpoints=endpoints,
        routing=routing,
    )


def _endpoints(given: Fields) -> tuple[StaticEndpoint, ...]:
    out = []
    items = _list(given, "endpoints")
    if not items:
        given.note("no_endpoints", "endpoints", f"cannot use {given.where}.endpoints: at least one is needed")
    for i, item in enumerate(items):
        each = Fields({"url": item} if isinstance(item, str) else item, f"{given.where}.endpoints[{i}]", given.problems)
        url = each.text("url", required=True).rstrip("/")
        if url and (reason := _bad_url(url)):
            each.note(
                "bad_url", "url", f"cannot use {each.where}.url = {_shown_url(url)!r}: {reason}", "http://10.0.0.5:8000"
            )
        weight = each.integer("weight", 1, least=0, most=1000)
        model = each.text("model") or None
        each.refuse_unknown()
        out.append(StaticEndpoint(url=url, weight=weight, model=model))
    return tuple(out)


def _shown_url(url: str) -> str:
    """Without a user and password."""
    before, at, after = url.rpartition("@")
    return (f"{before.partition('://')[0]}://…@{after}" if at else url)[:120]


def _bad_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        return "it is no URL"
    if parts.scheme != "http":
        return "it must begin with http://"
    if not parts.hostname or not port_ok:
        return "it names no machine"
    if parts.username or parts.password:
        return "it must hold no user or password"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return "it must end after the port; the router adds the path"
    return ""


def _key(data: Any, where: str, problems: list[Problem]) -> KeyEntry | None:
    before = len(problems)
    given = Fields(data, where, problems)
    name = given.text("name", required=True)
    where = given.where = f"keys[{name}]" if name else where
    prefix = given.text("prefix", required=True)
    sha256 = given.text("sha256", required=True).lower()
    if prefix and not _PREFIX.match(prefix):
        given.note("bad_prefix", "prefix", f"cannot use {where}.prefix: 8 letters or digits are needed")
    if sha256 and not _SHA256.match(sha256):
        given.note("bad_sha256", "sha256", f"cannot use {where}.sha256: 64 hex digits are needed")
    models = given.texts("models", most=100_000) if given.has("models") else None
    given.raw("models")
    expires = _moment(given, "expires")
    limits = {name: given.integer(name, None, least=1, most=most) for name, most in KEY_LIMITS.items()}
    given.refuse_unknown()
    if len(problems) > before:
        return None
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    return KeyEntry(name=name, prefix=prefix, sha256=sha256, models=models, expires=expires, limits=limits)


def _moment(given: Fields, name: str) -> datetime | None:
    value = given.raw(name)
    if value is None:
        return None
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time())
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
    except ValueError:
        pass
    given.note(
        "bad_date", name, f"cannot use {given.where}.{name} = {str(value)[:40]!r}: a date such as 2027-01-01 is needed"
    )
    return None


def _list(given: Fields, name: str) -> list[Any]:
    value = given.raw(name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        given.note("bad_value", name, f"cannot use {given.where}.{name}: a list is needed")
        return []
    return list(value)


def _refuse_doubles(names: list[str], what: str, given: Fields) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            often = "twice" if times == 2 else f"{times} times"
            given.note("double", "", f"cannot use {given.where}: the {what} {name[:80]!r} stands there {often}")
