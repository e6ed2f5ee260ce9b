"""Every change of a key: made once, shown once, and told to the routers at once."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from fleet.endpoints import ring_routes
from routing.keys import new_key
from routing.models import ApiKey


class KeyNameTaken(ValueError):
    """cannot make the key: there is one of that name."""


def create_key(*, name: str, **fields: Any) -> tuple[ApiKey, str]:
    """The row, and the key's text, which is kept nowhere."""
    text, prefix, sha256 = new_key()
    try:
        with transaction.atomic():
            row = ApiKey.objects.create(name=name, prefix=prefix, sha256=sha256, **fields)
            ring_routes()
    except IntegrityError:
        raise KeyNameTaken(f"cannot make the key {name}: there is one of that name; choose another") from None
    return row, text


@transaction.atomic
def change_key(key: ApiKey, fields: Mapping[str, Any]) -> ApiKey:
    for name, value in fields.items():
        setattr(key, name, value)
    key.save(update_fields=list(fields))
    ring_routes()
    return key


def revoke_key(key: ApiKey, *, now: datetime) -> ApiKey:
    """It stops within two seconds, or as soon as a router hears of it."""
    return key if key.revoked_at else change_key(key, {"revoked_at": now})
