"""Audio comes as a form: its model is found while it arrives, and the rest passes through."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.domain.form import MOST_PARTS, PART_HEAD_BYTES, form_of
from routing.domain.openai import BadRequest
from tests.routing.stage import Stage, Wire, say_hi, until, wait

PATH = "/v1/audio/transcriptions"
TYPE = "Content-Type: multipart/form-data; boundary=b0"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b0\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


FILE = part("file", b'RIFF\r\n--b\r\n\r\nname="model"\r\n\r\nn' * 40, '; filename="a; name=\\"model\\""')
END = b"--b0--\r\n"
FORM = FILE + part("model", b"m") + part("stream", b"true") + END


def read(body: bytes, cuts: list[int]) -> Any:
    form = form_of(TYPE.partition(": ")[2].encode())
    assert form is not None
    at = 0
    for cut in [*cuts, len(body)]:
        form.feed(body[at : at + cut])
        at += cut
    return form


@given(st.lists(st.integers(1, 60), max_size=40))
def test_a_form_cut_anywhere_reads_the_same(cuts: list[int]) -> None:
    form = read(FORM, cuts)
    assert (form.model, form.streamed) == ("m", True)
    assert FORM[form.span[0] : form.span[1]] == b"m"


def test_a_form_cut_into_bytes_reads_the_same() -> None:
    assert read(FORM, [1] * len(FORM)).model == "m"


@pytest.mark.parametrize(
    "body",
    [
        FILE + END,
        b"",
        b"--other\r\n" + FORM,
        part("model", b"m") + part("model", b"m") + END,
        part("model", b"m") + FILE + part("model", b"n") + END,
        part("model", b"\xff") + END,
        part("model", b"m" * 5000) + END,
        b"--b0\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
    ],
    ids=["none", "empty", "no-boundary", "twice", "twice-with-a-file-between", "no-utf-8", "long-name", "long-head"],
)
def test_a_form_without_one_model_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^cannot "):
        read(body.replace(b"--b0\r\n", b"--b1\r\n") if body.startswith(b"--other") else body, []).asked()


def test_memory_does_not_grow_with_the_file() -> None:
    form = read(b'--b0\r\nContent-Disposition: form-data; name="file"\r\n\r\n', [])
    for _ in range(50):
        form.feed(b"\r\n-" * 10_000)
    assert len(form._buffer) < 64


@pytest.mark.parametrize("more", [b"", b"; boundary=", b"; x=y"])
def test_a_form_without_boundary_is_refused(more: bytes) -> None:
    with pytest.raises(BadRequest):
        form_of(b"multipart/form-data" + more)


@pytest.mark.parametrize(
    "kind",
    [
        b"multipart/form-data; boundary=b0",
        b'Multipart/Form-Data;charset=utf-8; boundary="b0"',
        b"multipart/form-data;boundary=b0; x=y",
    ],
)
def test_boundaries(kind: bytes) -> None:
    form = form_of(kind)
    assert form is not None
    form.feed(FORM)
    assert form.model == "m"


# -- through the router -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("name", ["m", "a-longer-name"])
@pytest.mark.parametrize("step", [1, 50, 10_000])
async def test_a_form_is_passed_on(stage: Stage, chunked: bool, name: str, step: int) -> None:
    engine = await stage.engine(model=name)
    wire = await stage.open()
    body = part("model", b"m") + FILE + END
    wire.send(wire.head(TYPE, "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}", path=PATH))
    for at in range(0, len(body), step):
        piece = body[at : at + step]
        wire.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if step < 100:
            await asyncio.sleep(0)
    wire.send(b"0\r\n\r\n" if chunked else b"")
    wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.answer())[0] == 200
    assert (await wire.answer())[2] == b"ok\n"
    assert engine.heard[0].body == part("model", name.encode()) + FILE + END
    assert engine.heard[0].headers["content-type"] == TYPE.partition(": ")[2]


class Tap:
    """An engine that reads an upload only when told."""

    def __init__(self) -> None:
        self.got = 0
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.begun.set()
        await self.go.wait()
        while data := await reader.read(2**16):
            self.got += len(data)


async def upload(stage: Stage, size: int) -> tuple[Tap, Wire, int]:
    """A client that has sent all it could to an engine that reads nothing; what it still has to send."""
    tap = Tap()
    await stage.raw_engine(tap.serve)
    wire = await stage.open()
    wire.send(wire.head(TYPE, f"Content-Length: {size}", path=PATH) + part("model", b"m") + FILE[:-2])
    await wait(tap.begun.wait())
    left = size - len(part("model", b"m") + FILE[:-2])
    while True:
        wire.send(bytes(2**20))
        left -= 2**20
        try:
            await wait(wire.writer.drain(), 0.2)
        except TimeoutError:
            return tap, wire, left


async def test_an_upload_waits_for_a_slow_engine_and_is_kept_nowhere(stage: Stage) -> None:
    tap, wire, left = await upload(stage, 60 * 2**20)
    (connection,) = stage.router.clients
    assert left > 0
    assert len(connection._requests[0].body) == 0
    assert connection._exchange._upstream.transport.get_write_buffer_size() < 2**20
    tap.go.set()
    wire.send(bytes(left))
    await until(lambda: tap.got == 60 * 2**20, "the whole upload")


async def test_a_client_that_leaves_in_an_upload_that_waits_is_noticed(stage: Stage) -> None:
    _, wire, _ = await upload(stage, 60 * 2**20)
    wire.writer.transport.abort()
    await until(lambda: stage.usage, "the usage row", 3.0)


async def test_a_refusal_in_the_middle_of_an_upload_is_passed_on(stage: Stage) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"RIFF")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read()

    await stage.raw_engine(serve)
    wire = await stage.open()
    wire.send(wire.head(TYPE, "Content-Length: 100000", path=PATH) + part("model", b"m") + FILE)
    status, headers, body = await wire.answer()
    assert (status, headers["connection"], body) == (413, "close", b"{}")


async def test_an_upload_that_was_begun_is_sent_to_no_second_engine(stage: Stage) -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"RIFF")
        writer.transport.abort()

    await stage.raw_engine(die)
    engine = await stage.engine(say_hi, weight=1)
    stage.router.loads["e1"].turn = 5  # so that the first is chosen first
    wire = await stage.open()
    wire.send(wire.head(TYPE, "Content-Length: 100000", path=PATH) + part("model", b"m") + FILE)
    assert (await wire.answer())[0] == 502
    assert not engine.heard


async def test_a_second_model_late_in_an_upload_ends_it(stage: Stage) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1000):
                pass
        finally:
            gone.set()

    await stage.raw_engine(serve)
    wire = await stage.open()
    wire.send(wire.head(TYPE, "Content-Length: 100000", path=PATH) + part("model", b"m") + FILE)
    await until(lambda: stage.router.loads["e0"].outstanding, "the upload")
    wire.send(part("model", b"n") + FILE)
    assert (await wire.answer())[0] == 400
    await wait(gone.wait())


async def test_a_form_without_model_is_a_400(stage: Stage) -> None:
    wire = await stage.open()
    body = FILE + END
    wire.send(wire.head(TYPE, f"Content-Length: {len(body)}", path=PATH) + body)
    assert (await wire.answer())[0] == 400


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (part("x", b"") * (MOST_PARTS + 1), "more than 256 parts"),
        (b"--b0\r\n" + b"X: 1\r\n" * PART_HEAD_BYTES + b"\r\n\r\n", "head is too long"),
        (part("x" * 2000, b""), "head is too long"),
        (part("x", b"", '; a="' * 300), "head is too long"),
    ],
    ids=["parts", "headers", "name", "quotes"],
)
@pytest.mark.parametrize("step", [1, 2**20])
def test_a_form_has_limits_whatever_the_pieces(body: bytes, why: str, step: int) -> None:
    with pytest.raises(BadRequest, match=why):
        read(body + FORM, [step] * (len(body) // step))


def test_a_form_of_many_parts_is_read() -> None:
    assert read(part("x", b"") * (MOST_PARTS - 3) + FORM, []).model == "m"
