"""API keys with `may_manage` open the REST API; the router's other keys do not."""

from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from routing.keys import Denied, Key, authenticate
from routing.models import ApiKey


class KeyUser:
    """Whoever holds a managing key: what the REST API asks of a user, and no row."""

    pk = None
    is_staff = True
    is_active = True
    is_authenticated = True
    is_anonymous = False

    def __init__(self, key: ApiKey) -> None:
        self.username = f"key:{key.name}"

    def get_username(self) -> str:
        return self.username


class ApiKeyAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        parts = given.strip().split("_", 2)
        row = ApiKey.objects.filter(prefix=parts[1], revoked_at__isnull=True).first() if len(parts) == 3 else None
        keys = {}
        if row is not None:
            key = Key(id=str(row.pk), name=row.name, prefix=row.prefix, sha256=row.sha256, expires=row.expires_at)
            keys[row.prefix] = key
        found = authenticate(keys, given.strip(), timezone.now())
        if isinstance(found, Denied) or row is None:
            raise AuthenticationFailed(f"cannot authenticate: the API key is {found}")
        if not row.may_manage:
            raise AuthenticationFailed(f"cannot authenticate: the key {row.name} may not use the REST API")
        return KeyUser(row), row

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class ApiKeyScheme(OpenApiAuthenticationExtension):
    """How the OpenAPI description names it."""

    target_class = "routing.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
