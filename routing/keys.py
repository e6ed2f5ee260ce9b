"""Keys in memory: `llmgw_<8 prefix>_<43 base64url>`, of which only the SHA-256 of the whole is known here."""

import hashlib
import hmac
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from routing.domain.limits import NONE, Limits

_ALPHABET = string.ascii_lowercase + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    id: str
    name: str
    prefix: str
    sha256: str
    models: frozenset[str] | None = None  # None: all
    expires: datetime | None = None
    limits: Limits = NONE
    used_tokens: int = 0  # of this month, as the database knew it

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class Denied(StrEnum):
    MISSING = "missing"
    UNKNOWN = "unknown"
    EXPIRED = "expired"


def new_key() -> tuple[str, str, str]:
    """A new key's text, prefix and SHA-256; the text is shown once and kept nowhere."""
    prefix = "".join(secrets.choice(_ALPHABET) for _ in range(8))
    text = f"llmgw_{prefix}_{secrets.token_urlsafe(32)}"
    return text, prefix, digest(text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def authenticate(keys: Mapping[str, Key], given: str | None, now: datetime) -> Key | Denied:
    """`keys` by prefix."""
    if not given:
        return Denied.MISSING
    parts = given.split("_", 2)
    key = keys.get(parts[1]) if len(parts) == 3 and parts[0] == "llmgw" else None
    if key is None or not hmac.compare_digest(digest(given), key.sha256):
        return Denied.UNKNOWN
    if key.expires is not None and key.expires <= now:
        return Denied.EXPIRED
    return key
