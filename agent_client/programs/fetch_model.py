"""Fetches a model's files from a hub into a cache folder: `python fetch_model.py < request.json`, JSON lines out.

A process of its own, so that the agent stays small, can drop it at any moment, and never waits for it. One process a
model folder, whoever shares the disk; what came is compared with the hub's sizes and hashes before it is used.
"""

import contextlib
import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRESS_SECONDS = 0.5
CHUNK_BYTES = 8 * 1024 * 1024
#: Left free beside the files: logs and the engine's own caches share the disk.
SPARE_BYTES = 256 * 1024 * 1024
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.tflite", "*.ot")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class Failed(Exception):
    """cannot fetch the model."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code, self.hint = code, hint


class Away(Exception):
    """cannot ask the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file as the hub lists it; `sha256` of a large one, else git's SHA-1 of the blob."""

    name: str
    size: int
    sha256: str | None
    sha1: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    repo: str
    revision: str
    patterns: tuple[str, ...]
    cache: Path
    endpoint: str | None
    token: str | None

    @property
    def folder(self) -> Path:
        return self.cache / ("models--" + self.repo.replace("/", "--"))

    @property
    def locks(self) -> Path:
        return self.cache / ".locks" / "llmgw"

    @property
    def note(self) -> Path:
        """What the process that holds the lock is at."""
        return self.locks / f"{self.folder.name}.progress"


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def tell(request: Request, what: str, *, done: int, total: int) -> None:
    """How far it is, to the agent and, by a note beside the lock, to whoever waits for the same files."""
    say(event=what, done=done, total=total)
    with contextlib.suppress(OSError):
        _write(request.note, json.dumps([what, done, total]))


def chosen(names: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    """The files to fetch: those of the patterns, or one format's weights with everything that is not weights."""
    names = sorted(names)
    if patterns:
        return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    plain = [name for name in names if not any(fnmatch.fnmatch(name, weight) for weight in WEIGHTS)]
    for weight in WEIGHTS:
        # At the top: folders below hold the same weights in another format.
        if found := [name for name in names if fnmatch.fnmatch(name, weight) and "/" not in name]:
            return sorted(plain + found)
    return plain


def fetch(request: Request) -> Path:
    """The folder of the model's files, all of them whole; raises Failed."""
    from filelock import FileLock, Timeout

    request.locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(request.locks / f"{request.folder.name}.lock", mode=0o666)
    told: tuple[int, int] | None = (-1, -1)
    while True:
        try:
            with lock.acquire(timeout=PROGRESS_SECONDS):
                request.note.unlink(missing_ok=True)  # of one that was killed
                try:
                    return _fetch(request)
                finally:
                    request.note.unlink(missing_ok=True)
        except Timeout:
            found = _far(request)
            if found != told:
                told = found
                say(event="waiting", **({} if found is None else {"done": found[0], "total": found[1]}))


def _far(request: Request) -> tuple[int, int] | None:
    """How far the one that is waited for has come; None where it does not tell."""
    try:
        _, done, total = json.loads(request.note.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    return (done, total) if isinstance(done, int) and isinstance(total, int) else None


def _fetch(request: Request) -> Path:
    ready = _verified(request, request.revision if _COMMIT.match(request.revision) else None)
    if ready is not None:
        return ready
    try:
        commit, files = _listing(request)
    except Away as away:
        return _away(request, str(away))
    ready = _verified(request, commit)
    if ready is not None:
        _note_revision(request, commit)
        return ready
    total = sum(file.size for file in files)
    for again in (False, True):
        _check_space(request, files, commit)
        _download(request, commit, files, total)
        bad = _verify(request, commit, files, total)
        if not bad:
            _remember(request, commit, files)
            _note_revision(request, commit)
            return request.folder / "snapshots" / commit
        for file, _ in bad:
            _drop(request, commit, file)
        if again:
            file, why = bad[0]
            raise Failed("model_corrupt", f"cannot use {request.repo}: {file.name} {why}, twice", "is the disk sound?")
    raise AssertionError


def _listing(request: Request) -> tuple[str, list[File]]:
    """The commit and its files, as the hub has them; raises Failed, or Away when it can't be asked."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        api = HfApi(endpoint=request.endpoint, token=request.token or False)
        info = api.model_info(request.repo, revision=request.revision, files_metadata=True, timeout=10)
    except GatedRepoError:
        text = f"cannot fetch {request.repo}: its owner wants to know who takes it, and the token does not"
        raise Failed("model_gated", text, "ask for access on the model's page, and name the token's file") from None
    except RevisionNotFoundError:
        raise Failed("model_missing", f"cannot fetch {request.repo}: it has no revision {request.revision}") from None
    except RepositoryNotFoundError:
        text = f"cannot fetch {request.repo}: the hub has no such model, or it is private"
        raise Failed("model_missing", text, "look at the spelling; a private one needs a token") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        raise Away(f"the hub answered {status}") from None
    except Exception as error:  # the library's HTTP client has errors of its own, whose package may change
        raise Away(f"the hub does not answer ({type(error).__name__}: {error})"[:200]) from None
    if any(Path(each.rfilename).is_absolute() or ".." in Path(each.rfilename).parts for each in info.siblings or ()):
        raise Failed("fetch_failed", f"cannot fetch {request.repo}: the hub lists files outside the model's folder")
    names = set(chosen((each.rfilename for each in info.siblings or ()), request.patterns))
    if not names:
        what = f"no file that matches {', '.join(request.patterns)}" if request.patterns else "no files"
        raise Failed("model_missing", f"cannot fetch {request.repo}: it has {what}", "look at model_files")
    files = [
        File(
            name=each.rfilename,
            size=each.size or 0,
            sha256=each.lfs.sha256 if each.lfs else None,
            sha1=None if each.lfs else each.blob_id,
        )
        for each in info.siblings or ()
        if each.rfilename in names
    ]
    return str(info.sha), sorted(files, key=lambda file: file.name)


def _away(request: Request, why: str) -> Path:
    """What is here of the revision, when the hub can't be asked."""
    for note in (_revision_note(request), request.folder / "refs" / request.revision):
        try:
            commit = note.read_text(encoding="utf-8").strip()
        except OSError:
            continue
        found = _verified(request, commit)
        folder = request.folder / "snapshots" / commit
        if found is None and _COMMIT.match(commit) and folder.is_dir():
            found = folder  # put there by the hub's own client: preflight sees what may be missing
        if found is not None:
            say(event="note", text=f"{why}; the copy of {request.repo} that is here is used")
            return found
    hint = "open the way to it, set HF_ENDPOINT to a mirror, or copy the model here and name its path"
    raise Failed("hub_unreachable", f"cannot fetch {request.repo}: {why}, and no copy is here", hint)


def _check_space(request: Request, files: list[File], commit: str) -> None:
    have = sum(file.size for file in files if _size(request, commit, file) == file.size)
    partial = _partial_bytes(request)
    need = sum(file.size for file in files) - have - partial
    free = shutil.disk_usage(request.cache).free
    if need > 0 and free < need + SPARE_BYTES:
        text = (
            f"cannot fetch {request.repo}: {request.cache} has {free / 1e9:.1f} GB free, "
            f"{(need + SPARE_BYTES) / 1e9:.1f} GB needed"
        )
        raise Failed("disk_full", text, "free space there, or name another cache under policy.hub")


def _download(request: Request, commit: str, files: list[File], total: int) -> None:
    from huggingface_hub import snapshot_download

    stopped = threading.Event()
    before = _partial_bytes(request)

    def report() -> None:
        while not stopped.wait(PROGRESS_SECONDS):
            here = sum(file.size for file in files if _size(request, commit, file) == file.size)
            tell(request, "progress", done=min(total, here + max(0, _partial_bytes(request))), total=total)

    watcher = threading.Thread(target=report, daemon=True)
    watcher.start()
    tell(request, "progress", done=before, total=total)
    try:
        snapshot_download(
            request.repo,
            revision=commit,
            cache_dir=request.cache,
            endpoint=request.endpoint,
            token=request.token or False,
            allow_patterns=[glob.escape(file.name) for file in files],
            max_workers=4,
        )
    except OSError as error:
        if error.errno is not None and error.strerror and not hasattr(error, "response"):
            text = f"cannot fetch {request.repo}: {request.cache}: {error.strerror}"
            raise Failed("disk_full" if error.errno == 28 else "cache_unwritable", text) from None
        raise Failed("fetch_failed", f"cannot fetch {request.repo}: {type(error).__name__}: {error}"[:500]) from None
    except Exception as error:  # as in _listing
        raise Failed("fetch_failed", f"cannot fetch {request.repo}: {type(error).__name__}: {error}"[:500]) from None
    finally:
        stopped.set()
        watcher.join()


def _verify(request: Request, commit: str, files: list[File], total: int) -> list[tuple[File, str]]:
    """The files that differ from what the hub lists, with how."""
    bad = []
    done, said = 0, time.monotonic()
    for file in files:
        path = _path(request, commit, file)
        size = _size(request, commit, file)
        if size != file.size:
            bad.append((file, f"has {size or 0} bytes, {file.size} expected"))
            continue
        digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        with path.open("rb") as data:
            while chunk := data.read(CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if time.monotonic() - said > PROGRESS_SECONDS:
                    said = time.monotonic()
                    tell(request, "checking", done=done, total=total)
        expected = file.sha256 or file.sha1
        if expected and digest.hexdigest() != expected:
            bad.append((file, "has another hash than the hub lists"))
    return bad


def _drop(request: Request, commit: str, file: File) -> None:
    path = _path(request, commit, file)
    real = path.resolve()
    path.unlink(missing_ok=True)
    if real.is_relative_to(request.folder.resolve()):
        real.unlink(missing_ok=True)


def _revision_note(request: Request) -> Path:
    """Which commit a branch or tag was at when it was last fetched whole."""
    return request.folder / "llmgw" / f"{hashlib.sha256(request.revision.encode()).hexdigest()[:16]}.revision"


def _note_revision(request: Request, commit: str) -> None:
    _write(_revision_note(request), commit)


def _remember(request: Request, commit: str, files: list[File]) -> None:
    """Which files were whole, so that the next start need not read them again, nor ask the hub."""
    rows = {}
    for file in files:
        seen = _path(request, commit, file).stat()
        rows[file.name] = [file.size, seen.st_mtime_ns]
    _write(_mark(request, commit), json.dumps({"version": 1, "files": rows}))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _verified(request: Request, commit: str | None) -> Path | None:
    """The folder of a commit whose files were whole and have not changed since; None when that is not known."""
    if commit is None:
        return None
    try:
        rows: Mapping[str, Any] = json.loads(_mark(request, commit).read_text(encoding="utf-8"))["files"]
        folder = request.folder / "snapshots" / commit
        for name, (size, mtime) in rows.items():
            seen = (folder / name).stat()
            if (seen.st_size, seen.st_mtime_ns) != (size, mtime):
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if rows else None


def _mark(request: Request, commit: str) -> Path:
    what = hashlib.sha256(json.dumps(request.patterns).encode()).hexdigest()[:12]
    return request.folder / "llmgw" / f"{commit}-{what}.json"


def _path(request: Request, commit: str, file: File) -> Path:
    return request.folder / "snapshots" / commit / file.name


def _size(request: Request, commit: str, file: File) -> int | None:
    try:
        return _path(request, commit, file).stat().st_size
    except OSError:
        return None


def _partial_bytes(request: Request) -> int:
    total = 0
    for path in (request.folder / "blobs").glob("*.incomplete"):
        try:
            total += path.stat().st_blocks * 512  # what is there: a file may be made at its full length first
        except OSError:
            continue
    return total


def main() -> int:
    given = json.loads(sys.stdin.read())
    request = Request(
        repo=given["repo"],
        revision=given.get("revision") or "main",
        patterns=tuple(given.get("files") or ()),
        cache=Path(given["cache"]),
        endpoint=given.get("endpoint"),
        token=given.get("token"),
    )
    os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    os.environ.pop("HF_HUB_OFFLINE", None)
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        text = "cannot fetch models: huggingface_hub is not installed here"
        hint = "pip install -r requirements-agent.txt, or name a path as the model"
        say(event="failed", code="hub_client_missing", text=text, hint=hint)
        return 1
    try:
        path = fetch(request)
    except Failed as error:
        say(event="failed", code=error.code, text=str(error), hint=error.hint)
        return 1
    except OSError as error:
        text = f"cannot fetch {request.repo}: {error.filename or request.cache}: {error.strerror or error}"
        say(event="failed", code="cache_unwritable", text=text, hint="name another cache under policy.hub")
        return 1
    say(event="done", path=str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
