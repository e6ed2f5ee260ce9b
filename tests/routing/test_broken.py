"""Whatever goes wrong inside the router ends one request alone: nothing of it is left, and its client is told."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import routing
from routing.dataplane import exchange
from routing.domain import openai
from tests.routing.stage import CHAT, Heard, Stage, chunk, say_hi, stream_head, until, wait

HOME = str(Path(routing.__file__).parent)
EVENT = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
#: What is left where each of these does nothing but raise can't be cleared by anything else: they take or clear it.
CLEARING = {
    "Proxied._send",  # takes the connection over
    "Proxied.broken",
    "Proxied._settle",
    "Proxied._let_go",
    "Proxied._book",
    "Chooser.end",
    "Router.broken",
    "ClientConnection.broken",
    "ClientConnection.answered",
    "ClientConnection._done",
    "Upstream.abort",
}


async def streamed(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(stream_head() + chunk(EVENT))
    await asyncio.sleep(0.01)
    writer.write(chunk(USAGE + b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def cut(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(stream_head() + chunk(EVENT))
    await asyncio.sleep(0.01)
    writer.transport.abort()


async def silent(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def keyless(heard: Heard, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\n{}")


async def whole(stage: Stage) -> None:
    await ask(stage, CHAT)


async def stream(stage: Stage) -> None:
    await ask(stage, CHAT | {"stream": True})


async def form(stage: Stage) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    head += b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    wire = await stage.open()
    size = f"Content-Length: {len(head) + 2000 + 9}"
    kind = "Content-Type: multipart/form-data; boundary=b"
    wire.send(wire.head(size, kind, "Connection: close", path="/v1/audio/transcriptions") + head)
    await asyncio.sleep(0.02)
    wire.send(b"x" * 2000 + b"\r\n--b--\r\n")
    await wire.end()


async def leave(stage: Stage) -> None:
    wire = await stage.open()
    wire.post(CHAT | {"stream": True}, "Connection: close")
    await wait(wire.reader.read(1))
    wire.writer.transport.abort()


async def ask(stage: Stage, body: Any) -> None:
    wire = await stage.open()
    wire.post(body, "Connection: close")
    await wire.end()


SCENES: dict[str, tuple[Any, Callable[[Stage], Awaitable[None]]]] = {
    "whole": (say_hi, whole),
    "stream": (streamed, stream),
    "cut": (cut, stream),
    "no-answer": (silent, whole),
    "wrong-key": (keyless, whole),
    "upload": (say_hi, form),
    "left": (streamed, leave),
    "nobody": (None, whole),
}


@pytest.mark.parametrize("scene", SCENES)
async def test_an_error_in_any_function_leaves_nothing_behind(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[tuple[str, str]] = set()
    with noted(called):
        await check(scene, lambda: None)
    names = sorted(each for each in called if each[1] not in CLEARING)
    assert len(names) > 15
    for module, name in names:
        print(f"{module} {name}")  # what to look at when this fails
        with monkeypatch.context() as patch:
            await check(scene, partial(raise_once, patch, module, name))


async def check(scene: str, prepare: Callable[[], None]) -> None:
    script, act = SCENES[scene]
    lines: list[Any] = []
    async with Stage() as stage:
        stage.router._on_line = lines.append
        for _ in range(2):
            if script is None:
                stage.endpoint(1)
            else:
                await stage.engine(script)
        prepare()
        await act(stage)
        loads, pool = stage.router.loads, stage.router.pool
        await until(lambda: not any(load.outstanding for load in loads.values()), "the places")
        await until(lambda: lines, "a line in the access log")
        await until(
            lambda: sum(len(each._open) for each in stage.engines) == sum(len(idle) for idle in pool._idle.values()),
            "the engines' connections",
        )
        assert len(lines) == 1
        assert not any(load.streams for load in loads.values())


@contextmanager
def noted(called: set[tuple[str, str]]) -> Iterator[None]:
    """Which functions the data plane calls while it works on a request."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None and caller.f_code.co_filename.endswith("dataplane/exchange.py"):
            code = frame.f_code
            if code.co_filename.startswith(HOME) and "<" not in code.co_qualname:
                called.add((frame.f_globals["__name__"], code.co_qualname))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def raise_once(patch: pytest.MonkeyPatch, module: str, name: str) -> None:
    owner: Any = import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    true, raised = owner.__dict__[last] if path else getattr(owner, last), False
    function = true.__func__ if isinstance(true, (classmethod, staticmethod)) else true
    if isinstance(true, property):
        function = true.fget

    @wraps(function)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        nonlocal raised
        if raised:
            return function(*args, **kwargs)
        raised = True
        raise RuntimeError(f"made by the test in {name}")

    made = type(true)(wrong) if isinstance(true, (classmethod, staticmethod, property)) else wrong
    if hasattr(function, "__wrapped__"):  # the step, not the guard around it
        made = exchange._whole(made)
    patch.setattr(owner, last, made)
    if not path:  # it was imported by name
        for each in list(sys.modules.values()):
            if each.__name__.startswith("routing.") and getattr(each, last, None) is true:
                patch.setattr(each, last, made)


@pytest.mark.parametrize(("owner", "name", "used"), [(exchange, "to_engine", True), (openai, "read", False)])
async def test_an_error_of_ours_is_a_500_in_the_books(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, used: bool
) -> None:
    """In the access log, the metrics and, where a replica was chosen, the usage."""
    lines: list[Any] = []
    stage.router._on_line = lines.append
    await stage.engine()
    monkeypatch.setattr(owner, name, lambda *_: 1 // 0)
    await ask(stage, CHAT)
    await until(lambda: lines, "the line")
    assert [line.status for line in lines] == [500]
    assert [status for _, _, status in stage.router.metrics.requests] == [500]
    assert [row["status"] for row in stage.usage] == [500] * used
