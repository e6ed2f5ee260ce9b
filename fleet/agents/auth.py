"""May this connection speak at all? The shared join secret, and plaintext on loopback only."""

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from agent_client.protocol.states import CloseCode
from fleet.conf import fleet_conf


def refusal(scope: Mapping[str, Any]) -> tuple[CloseCode, str, str, str] | None:
    """(close code, error code, sentence, hint) when the connection is refused."""
    if not settings.FLEET["insecure_agents"] and scope.get("scheme") != "wss" and not _loopback(scope):
        return (
            CloseCode.REFUSED,
            "plaintext_refused",
            "cannot take an agent over plaintext from another machine",
            "put TLS before the listener, or set LLMGW_INSECURE_AGENTS=1 on a network that you trust",
        )
    expected = fleet_conf().join_secret
    if not expected:
        return (
            CloseCode.BAD_SECRET,
            "join_secret_unset",
            "cannot admit agents: the control plane has no join secret",
            "set LLMGW_JOIN_SECRET or LLMGW_JOIN_SECRET_FILE and restart it",
        )
    if not hmac.compare_digest(_bearer(scope).encode(), expected.encode()):
        return (
            CloseCode.BAD_SECRET,
            "join_secret_wrong",
            "cannot admit this agent: its join secret is wrong or missing",
            "give the agent the control plane's join secret: join_secret_file in agent.yaml, or "
            "LLMGW_AGENT_JOIN_SECRET in its environment",
        )
    return None


def remote(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "unknown"


def _loopback(scope: Mapping[str, Any]) -> bool:
    client = scope.get("client")
    if not client:
        return True  # a unix socket
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _bearer(scope: Mapping[str, Any]) -> str:
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else ""
    return ""
