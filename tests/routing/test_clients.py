"""The official clients, unmodified: what they ask is served, and what goes wrong raises what their users catch."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.routing.stage import Heard, Stage, chunk, stream_head, until, whole

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer(**message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def piece(delta: dict[str, Any] | None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    event = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
STREAMS = {
    "text": [piece({"role": "assistant", "content": ""}), piece({"content": "héllo "}), piece({"content": "world"})],
    "tools": [
        piece({"role": "assistant", "tool_calls": [CALL]}),
        piece({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
        piece({"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]}),
    ],
}


async def openai_engine(heard: Heard, writer: asyncio.StreamWriter) -> None:
    asked = json.loads(heard.body)
    if heard.line.startswith("POST /v1/embeddings"):
        row = {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}
        told = {"object": "list", "model": "m", "data": [row], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        writer.write(whole(json.dumps(told).encode()))
    elif asked.get("stream"):
        usage = [piece(None, usage=USAGE)] if asked.get("stream_options", {}).get("include_usage") else []
        events = [*STREAMS["tools" if asked.get("tools") else "text"], *usage, b"data: [DONE]\n\n"]
        writer.write(stream_head() + b"".join(map(chunk, events)) + b"0\r\n\r\n")
    else:
        writer.write(whole(json.dumps(answer(content=f"{len(heard.body)}")).encode()))


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{stage.port}/v1", api_key=stage.key, max_retries=0
    ) as client:
        yield client


async def test_openai_chat_whole_streamed_and_with_tools(stage: Stage, client: openai.AsyncOpenAI) -> None:
    await stage.engine(openai_engine)
    told = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert told.choices[0].message.content
    assert told.usage and told.usage.total_tokens == 5  # noqa: PT018
    text = ""
    async for each in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
        assert each.choices  # the usage that the router asked for is not shown
        text += each.choices[0].delta.content or ""
    assert text == "héllo world"
    arguments, usage = "", None
    async for each in await client.chat.completions.create(
        model="m", messages=MESSAGES, tools=TOOLS, stream=True, stream_options={"include_usage": True}
    ):
        usage = each.usage
        for call in each.choices[0].delta.tool_calls or [] if each.choices else []:
            assert call.function
            arguments += call.function.arguments or ""
    assert json.loads(arguments) == {"city": "Rome"}
    assert usage and usage.completion_tokens == 2  # noqa: PT018
    await until(lambda: len(stage.usage) == 3, "the usage rows")
    assert [row["completion_tokens"] for row in stage.usage] == [2, 2, 2]


async def test_openai_embeddings_and_models(stage: Stage, client: openai.AsyncOpenAI) -> None:
    await stage.engine(openai_engine)
    told = await client.embeddings.create(model="m", input="x", encoding_format="float")
    assert told.data[0].embedding == [0.5, 1.0]
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("n")


async def test_openai_audio(stage: Stage, client: openai.AsyncOpenAI) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(json.dumps({"text": str(heard.body.count(b"RIFF"))}).encode()))

    engine = await stage.engine(script, model="whisper")
    sound = b"RIFF" + bytes(300_000)
    assert (await client.audio.transcriptions.create(model="m", file=("a.wav", sound))).text == "1"
    assert b'name="model"\r\n\r\nwhisper\r\n' in engine.heard[0].body
    assert sound in engine.heard[0].body


async def test_openai_images_of_20_mb(stage: Stage, client: openai.AsyncOpenAI) -> None:
    engine = await stage.engine(openai_engine, model="inner")
    image = base64.b64encode(bytes(range(256)) * 60_000).decode()
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    told = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])  # type: ignore
    assert int(told.choices[0].message.content or 0) > 20_000_000
    assert json.loads(engine.heard[0].body)["messages"][0]["content"] == content


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ("400 Bad Request", openai.BadRequestError),
        ("404 Not Found", openai.NotFoundError),
        ("422 Unprocessable", openai.UnprocessableEntityError),
        ("429 Too Many Requests", openai.RateLimitError),
        ("500 Internal Server Error", openai.InternalServerError),
        ("403 Forbidden", openai.InternalServerError),  # between router and engine: no trouble of the client's
    ],
)
async def test_an_engines_error_raises_its_class(
    stage: Stage, client: openai.AsyncOpenAI, status: str, wanted: type[Exception]
) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'{"error":{"message":"inner"}}', status=status))

    await stage.engine(script)
    with pytest.raises(wanted):
        await client.chat.completions.create(model="m", messages=MESSAGES)


async def test_the_routers_errors_raise_their_classes() -> None:
    async with Stage(may=["m"]) as stage:
        stage.router.table = stage.with_models("m", "other")
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{stage.port}/v1", api_key=stage.key, max_retries=0
        ) as client:
            create = client.chat.completions.create
            with pytest.raises(openai.NotFoundError) as missing:
                await create(model="none", messages=MESSAGES)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.PermissionDeniedError):
                await create(model="other", messages=MESSAGES)
            with pytest.raises(openai.InternalServerError) as down:
                await create(model="m", messages=MESSAGES)
            assert (down.value.status_code, down.value.response.headers["retry-after"]) == (503, "5")
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="llmgw_aaaaaaaa_x").models.list()
            with pytest.raises(openai.BadRequestError):
                await create(model=5, messages=MESSAGES)  # type: ignore[call-overload]
            with pytest.raises(openai.APIStatusError) as large:
                await create(model="m", messages=[{"role": "user", "content": "x" * (65 * 2**20)}])
            assert large.value.status_code == 413


async def test_a_stream_that_breaks_raises(stage: Stage, client: openai.AsyncOpenAI) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(STREAMS["text"][1]))
        await asyncio.sleep(0.05)
        writer.close()

    await stage.engine(script)
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert (await anext(stream)).choices
    with pytest.raises(openai.APIError, match="cannot go on"):
        await anext(stream)


async def test_a_client_comes_back_when_it_was_told() -> None:
    async with (
        Stage(retry_after=1) as stage,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{stage.port}/v1", api_key=stage.key, max_retries=1) as client,
    ):
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(client.chat.completions.create(model="m", messages=MESSAGES))
        wire, refused = await stage.open(), False
        while not refused:
            wire.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            refused = b'"503"' in (await wire.answer())[2]
            await asyncio.sleep(0.02)
        await stage.engine(openai_engine)
        assert (await asking).choices[0].message.content
        assert asyncio.get_running_loop().time() - began >= 1


# -- anthropic --------------------------------------------------------------------------------------------------------

TOLD: dict[str, Any] = {
    "id": "a",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 4, "output_tokens": 2},
}


def event(kind: str, **more: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


def argument(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": text})


async def anthropic_engine(heard: Heard, writer: asyncio.StreamWriter) -> None:
    if not json.loads(heard.body).get("stream"):
        writer.write(whole(json.dumps(TOLD).encode()))
        return
    tool = {"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    events = [
        event("message_start", message={**TOLD, "content": [], "stop_reason": None}),
        event("content_block_start", index=0, content_block=tool),
        argument('{"city": '),
        event("ping"),
        argument('"Rome"}'),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 9}),
        event("message_stop"),
    ]
    writer.write(stream_head() + b"".join(map(chunk, events)) + b"0\r\n\r\n")


@pytest.fixture
async def claude(stage: Stage) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{stage.port}", api_key=stage.key, max_retries=0
    ) as client:
        yield client


async def test_anthropic_messages_whole_and_tools_in_a_stream(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    engine = await stage.engine(anthropic_engine)
    told = await claude.messages.create(model="m", max_tokens=9, messages=MESSAGES)
    assert told.content[0].type == "text"
    async with claude.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
        last = await stream.get_final_message()
    assert last.content[0].type == "tool_use"
    assert last.content[0].input == {"city": "Rome"}
    assert last.usage.output_tokens == 9
    assert not {"x-api-key", "authorization"} & set(engine.heard[0].headers)
    assert engine.heard[0].headers["anthropic-version"]
    await until(lambda: len(stage.usage) == 2, "the usage rows")
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in stage.usage] == [(4, 2), (4, 9)]


async def test_anthropic_errors_raise_their_classes(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    stage.router.table = stage.with_models("m")

    async def create(client: anthropic.AsyncAnthropic, model: str) -> Any:
        return await client.messages.create(model=model, max_tokens=9, messages=MESSAGES)

    with pytest.raises(anthropic.NotFoundError) as missing:
        await create(claude, "none")
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.AuthenticationError):
        await create(claude.with_options(api_key="llmgw_aaaaaaaa_x"), "m")
    with pytest.raises(anthropic.InternalServerError) as down:
        await create(claude, "m")
    assert down.value.status_code == 503


async def test_an_anthropic_stream_that_breaks_raises(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(event("message_start", message={**TOLD, "content": []})))
        await asyncio.sleep(0.05)
        writer.close()

    await stage.engine(script)
    with pytest.raises(anthropic.APIError, match="cannot go on"):
        async with claude.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
            await stream.get_final_message()


async def test_anthropic_retries_are_honoured() -> None:
    async with Stage(retry_after=1) as stage:
        turns = 0

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            nonlocal turns
            turns += 1
            if turns == 1:
                writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}")
            else:
                await anthropic_engine(heard, writer)

        await stage.engine(script)
        async with anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{stage.port}", api_key=stage.key, max_retries=2
        ) as client:
            began = asyncio.get_running_loop().time()
            assert (await client.messages.create(model="m", max_tokens=9, messages=MESSAGES)).id == "a"
            assert turns == 2
            assert asyncio.get_running_loop().time() - began >= 1
