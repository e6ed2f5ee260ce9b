"""Models named by a hub id: fetched into a folder of this node by a process of its own, whose progress is passed on.

The folder then takes the id's place, so that the engine itself needs no network and every rank sees the same commit.
"""

import asyncio
import contextlib
import fnmatch
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_client.config import AgentConfig
from agent_client.profile import EngineKind, Profile, SecretRef

PROGRAM = Path(__file__).resolve().parent / "programs" / "fetch_model.py"
#: One JSON line of the program; far longer ones are not its.
LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """What is being done: `fetching`, `checking` or `waiting` for another agent that fetches the same; bytes."""

    phase: str
    done: int | None = None
    total: int | None = None

    @property
    def share(self) -> float | None:
        return self.done / self.total if self.done is not None and self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFetched:
    code: str
    text: str
    hint: str = ""


async def fetch(
    config: AgentConfig,
    profile: Profile,
    secrets: Mapping[str, str],
    *,
    on_progress: Callable[[Fetching], None],
    stall_seconds: float,
    environ: Mapping[str, str],
) -> Profile | NotFetched:
    """The profile with a path for its model. Cancelled, it ends the process; what was fetched is kept for the next.

    `stall_seconds`: how long it may go without a byte; a slow download that goes on is never cut.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # a library's chatter, where a token could stand
        env={name: value for name, value in environ.items() if "TOKEN" not in name},
        limit=LINE_BYTES,
        start_new_session=True,
    )
    try:
        assert child.stdin
        assert child.stdout
        child.stdin.write(json.dumps(_request(config, profile, secrets, environ)).encode())
        child.stdin.close()
        return await _follow(child.stdout, profile, on_progress, stall_seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _follow(
    lines: asyncio.StreamReader, profile: Profile, on_progress: Callable[[Fetching], None], stall_seconds: float
) -> Profile | NotFetched:
    loop = asyncio.get_running_loop()
    seen, moved = Fetching(phase="fetching"), loop.time()
    while True:
        try:
            async with asyncio.timeout_at(moved + stall_seconds):
                line = await lines.readline()
        except TimeoutError:
            text = f"cannot fetch {profile.model}: nothing came for {stall_seconds:.0f} s"
            return NotFetched(code="fetch_stalled", text=text, hint="look at this node's way to the hub")
        except ValueError:  # a line beyond the limit
            line = b""
        if not line:
            text = f"cannot fetch {profile.model}: the process that fetches it ended"
            return NotFetched(code="fetch_failed", text=text, hint="was it killed for want of memory?")
        match _event(line):
            case {"event": "done", "path": str(path)}:
                return _placed(profile, Path(path))
            case {"event": "failed", "code": str(code), "text": str(text), "hint": str(hint)}:
                return NotFetched(code=code, text=text, hint=hint)
            case {"event": "progress", "done": int(done), "total": int(total)}:
                now = Fetching(phase="fetching", done=done, total=total)
            case {"event": "checking", "done": int(done), "total": int(total)}:
                now = Fetching(phase="checking", done=done, total=total)
            case {"event": "waiting", **far}:
                # The other one's stall is for its own agent to judge; its lock ends with it.
                now, stall_seconds = _waiting(far), float("inf")
            case _:
                continue
        if now != seen:
            seen, moved = now, loop.time()
            on_progress(now)


def _waiting(far: Mapping[Any, Any]) -> Fetching:
    """With how far the other one is, where it tells."""
    done, total = far.get("done"), far.get("total")
    if isinstance(done, int) and isinstance(total, int):
        return Fetching(phase="waiting", done=done, total=total)
    return Fetching(phase="waiting")


def _request(
    config: AgentConfig, profile: Profile, secrets: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, Any]:
    hub = config.policy.hub
    wanted = profile.env.get("HF_TOKEN")
    name = wanted.name if isinstance(wanted, SecretRef) else hub.token_secret if hub else None
    engine = (config.policy.engines or {}).get(profile.engine)
    cache = hub.cache if hub and hub.cache else _usual_cache({**environ, **(engine.env if engine else {})})
    return {
        "repo": profile.model,
        "revision": profile.model_revision,
        "files": list(profile.model_files),
        "cache": str(cache),
        "endpoint": hub.endpoint if hub else None,
        "token": secrets.get(name) if name else None,
    }


def _usual_cache(environ: Mapping[str, str]) -> Path:
    """Where the hub's own client keeps its files, so that nothing is fetched twice on a machine that has it."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    home = environ.get("HF_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface") / "hub"


def _placed(profile: Profile, folder: Path) -> Profile:
    """llama.cpp takes a file, the first of a split one; the others take the folder."""
    if profile.engine is EngineKind.LLAMACPP:
        found = sorted(path for path in folder.rglob("*.gguf") if "mmproj" not in path.name)
        patterns = profile.model_files or ("*.gguf",)
        found = [p for p in found if any(fnmatch.fnmatch(str(p.relative_to(folder)), each) for each in patterns)]
        if found:
            folder = found[0]
    return replace(profile, model=str(folder), model_revision=None, model_files=())


def _event(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
