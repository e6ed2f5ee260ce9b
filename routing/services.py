"""Every change of a key: made once, shown once, and told to the routers at once."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from fleet.endpoints import ring_routes, unknown_names
from routing.keys import new_key
from routing.models import ApiKey


class BadKeyName(ValueError):
    """cannot make the key: it has no name, by which people tell it from others."""


class KeyNameTaken(ValueError):
    """cannot make the key: there is one of that name."""


def create_key(*, name: str, **fields: Any) -> tuple[ApiKey, str]:
    """The row, and the key's text, which is kept nowhere."""
    name = checked_name(name)
    text, prefix, sha256 = new_key()
    try:
        with transaction.atomic():
            row = ApiKey.objects.create(name=name, prefix=prefix, sha256=sha256, **fields)
            ring_routes()
    except IntegrityError:
        raise KeyNameTaken(f"cannot make the key {name}: there is one of that name; choose another") from None
    return row, text


def change_key(key: ApiKey, fields: Mapping[str, Any]) -> ApiKey:
    for name, value in fields.items():
        setattr(key, name, value)
    try:
        with transaction.atomic():
            key.save(update_fields=list(fields))
            ring_routes()
    except IntegrityError:
        raise KeyNameTaken(f"cannot name the key {key.name}: there is one of that name; choose another") from None
    return key


def checked_name(name: str) -> str:
    """Without blanks around it. Raises BadKeyName."""
    if not name.strip():
        raise BadKeyName("cannot make the key: it has no name; give one by which you will know it, such as ci")
    return name.strip()


def not_in_catalog(models: Iterable[str] | None) -> str:
    """What to say of a key for models that are not there, or nothing: they may come later."""
    unknown = unknown_names(models or ())
    if not unknown:
        return ""
    named = ", ".join(unknown)
    return (
        f"no model is called {named} now: the key may use {'them' if len(unknown) > 1 else 'it'} from when it is there"
    )


def revoke_key(key: ApiKey, *, now: datetime) -> ApiKey:
    """It stops within two seconds, or as soon as a router hears of it."""
    return key if key.revoked_at else change_key(key, {"revoked_at": now})
