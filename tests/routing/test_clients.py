"""The official clients, unmodified: what they ask is served, and what goes wrong raises what their users catch."""

import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from routing.table import parse
from tests.routing.stage import Heard, Script, Stage, chunk, stream_head, until, whole

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


async def test_what_is_busy_raises_a_rate_limit_and_is_asked_again_when_told(stage: Stage) -> None:
    """The second request of a minute that allows one, and a model whose places are taken."""
    await stage.engine(openai_engine)
    routes = stage._routes()
    routes["keys"][0]["limits"] = {"requests_per_minute": 1}
    stage.router.table = parse(routes)
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{stage.port}/v1", api_key=stage.key, max_retries=0
    ) as client:
        await client.chat.completions.create(model="m", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as busy:
            await client.chat.completions.create(model="m", messages=MESSAGES)
        assert busy.value.code == "rate_limit_exceeded"
        assert 1 <= int(busy.value.response.headers["retry-after"]) <= 120


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


async def test_anthropic_images_of_20_mb(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    engine = await stage.engine(anthropic_engine, model="inner")
    image = base64.b64encode(bytes(range(256)) * 60_000).decode()
    content: Any = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}]
    told = await claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": content}])
    assert told.content[0].type == "text"
    assert len(engine.heard[0].body) > 20_000_000
    asked = json.loads(engine.heard[0].body)
    assert (asked["model"], asked["messages"][0]["content"]) == ("inner", content)


async def test_anthropic_models(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    stage.router.table = stage.with_models("a", "b/c", "d")
    first = await claude.models.list()
    assert [(row.type, row.id, row.display_name, row.lifecycle) for row in first.data] == [
        ("model", name, name, "active") for name in ("a", "b/c", "d")
    ]
    assert (first.has_more, first.first_id, first.last_id) == (False, "a", "d")
    assert first.data[0].created_at.year == 1970
    assert [row.id async for row in claude.models.list(limit=1)] == ["a", "b/c", "d"]
    before = await claude.models.list(limit=1, before_id="d")
    assert [row.id for row in before.data] == ["b/c"]
    assert [row.id async for row in before] == ["b/c", "a"]
    assert (await claude.models.retrieve("b/c")).id == "b/c"
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        await claude.models.list(limit=0)
    with pytest.raises(anthropic.BadRequestError, match="after_id"):
        await claude.models.list(after_id="none")
    stage.router.table = stage.with_models()
    assert [row async for row in claude.models.list()] == []


async def test_anthropic_counts_tokens(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b'{"input_tokens":7}'))

    engine = await stage.engine(script)
    assert (await claude.messages.count_tokens(model="m", messages=MESSAGES)).input_tokens == 7
    assert engine.heard[0].line.startswith("POST /v1/messages/count_tokens ")


ASKED: dict[str, Callable[[anthropic.AsyncAnthropic, str], Awaitable[Any]]] = {
    "messages": lambda client, model: client.messages.create(model=model, max_tokens=9, messages=MESSAGES),
    "stream": lambda client, model: client.messages.create(model=model, max_tokens=9, messages=MESSAGES, stream=True),
    "beta": lambda client, model: client.beta.messages.create(model=model, max_tokens=9, messages=MESSAGES),
    "count_tokens": lambda client, model: client.messages.count_tokens(model=model, messages=MESSAGES),
    "models": lambda client, model: client.models.retrieve(model),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_anthropic_errors_raise_their_classes(asked: str) -> None:
    """On each path that its client uses, in the shape that it reads: the class, the type, the request's id."""
    ask = ASKED[asked]
    async with Stage(may=["m", "down"]) as stage:
        await stage.engine(anthropic_engine)
        routes = stage._routes()
        routes["models"] += [{"name": "down", "state": "down"}, {"name": "other", "state": "down"}]
        stage.router.table = parse(routes)
        async with anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{stage.port}", api_key=stage.key, max_retries=0
        ) as client:

            async def told(model: str, wanted: type[anthropic.APIStatusError], kind: str, **options: Any) -> Any:
                with pytest.raises(wanted) as raised:
                    await ask(client.with_options(**options), model)
                assert type(raised.value) is wanted
                assert (raised.value.type, bool(raised.value.request_id)) == (kind, True)
                assert raised.value.api_message
                return raised.value

            await told("none", anthropic.NotFoundError, "not_found_error")
            bad = {"api_key": "llmgw_aaaaaaaa_x"}
            await told("m", anthropic.AuthenticationError, "authentication_error", **bad)
            stage.router.table = dataclasses.replace(stage.router.table, keys_complete=False)
            await told("m", anthropic.ServiceUnavailableError, "overloaded_error", **bad)
            stage.router.table = parse(routes)
            if asked == "models":  # what the key may not use is not there for it
                await told("other", anthropic.NotFoundError, "not_found_error")
                return
            await told("other", anthropic.PermissionDeniedError, "permission_error")
            down = await told("down", anthropic.ServiceUnavailableError, "overloaded_error")
            assert down.response.headers["retry-after"] == "5"
            routes["keys"][0]["limits"] = {"tokens_per_month": 1}
            routes["keys"][0]["used_tokens"] = 1
            stage.router.table = parse(routes)
            busy = await told("m", anthropic.RateLimitError, "rate_limit_error")
            assert int(busy.response.headers["retry-after"]) >= 1


async def test_anthropic_bodies_that_are_too_large_or_no_messages(
    stage: Stage, claude: anthropic.AsyncAnthropic
) -> None:
    content = "x" * (65 * 2**20)
    with pytest.raises(anthropic.ContentTooLargeError) as large:
        await claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": content}])
    assert large.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError) as bad:
        await claude.messages.create(model=5, max_tokens=9, messages=MESSAGES)  # type: ignore[call-overload]
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.APIStatusError) as batches:
        await claude.messages.batches.list()
    assert (batches.value.status_code, batches.value.type) == (405, "invalid_request_error")


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ("400 Bad Request", anthropic.BadRequestError),
        ("413 Content Too Large", anthropic.ContentTooLargeError),
        ("422 Unprocessable", anthropic.UnprocessableEntityError),
        ("429 Too Many Requests", anthropic.RateLimitError),
        ("500 Internal Server Error", anthropic.InternalServerError),
        ("504 Gateway Timeout", anthropic.GatewayTimeoutError),
        ("529 Overloaded", anthropic.OverloadedError),
        ("401 Unauthorized", anthropic.InternalServerError),  # between router and engine: no trouble of the client's
        ("403 Forbidden", anthropic.InternalServerError),
    ],
)
async def test_an_engines_error_raises_anthropics_class(
    stage: Stage, claude: anthropic.AsyncAnthropic, status: str, wanted: type[Exception]
) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        told = {"type": "error", "error": {"type": "of_the_engine", "message": "inner"}}
        writer.write(whole(json.dumps(told).encode(), status=status))

    await stage.engine(script)
    with pytest.raises(wanted) as raised:
        await claude.messages.create(model="m", max_tokens=9, messages=MESSAGES)
    assert type(raised.value) is wanted


async def test_an_anthropic_stream_that_breaks_raises(stage: Stage, claude: anthropic.AsyncAnthropic) -> None:
    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(event("message_start", message={**TOLD, "content": []})))
        await asyncio.sleep(0.05)
        writer.close()

    await stage.engine(script)
    with pytest.raises(anthropic.APIError, match="cannot go on"):
        async with claude.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream:
            await stream.get_final_message()


# -- both: when to come back ------------------------------------------------------------------------------------------

Ask = Callable[[Stage, int], Awaitable[str]]


async def ask_openai(stage: Stage, max_retries: int) -> str:
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{stage.port}/v1", api_key=stage.key, max_retries=max_retries
    ) as client:
        return (await client.chat.completions.create(model="m", messages=MESSAGES)).id


async def ask_anthropic(stage: Stage, max_retries: int) -> str:
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{stage.port}", api_key=stage.key, max_retries=max_retries
    ) as client:
        return (await client.messages.create(model="m", max_tokens=9, messages=MESSAGES)).id


CLIENTS = pytest.mark.parametrize(
    ("ask", "engine"), [(ask_openai, openai_engine), (ask_anthropic, anthropic_engine)], ids=["openai", "anthropic"]
)


@CLIENTS
async def test_a_client_comes_back_when_it_was_told(ask: Ask, engine: Script) -> None:
    """Of a model without replicas: 503."""
    async with Stage(retry_after=1) as stage:
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(ask(stage, 1))
        await until(lambda: refused(stage, "503"), "the refusal")
        await stage.engine(engine)
        assert await asking == "a"
        assert asyncio.get_running_loop().time() - began >= 1


@CLIENTS
async def test_a_client_comes_back_to_a_model_that_was_busy(ask: Ask, engine: Script) -> None:
    """Whose one place was taken: 429."""
    async with Stage(retry_after=1, concurrency=1, queue=0) as stage:
        go = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await engine(heard, writer)

        holding = await stage.engine(script)
        first = asyncio.ensure_future(ask(stage, 0))
        await until(lambda: holding.heard, "the first")
        began = asyncio.get_running_loop().time()
        second = asyncio.ensure_future(ask(stage, 1))
        await until(lambda: refused(stage, "model_busy"), "the refusal")
        go.set()
        assert [await first, await second] == ["a", "a"]
        assert asyncio.get_running_loop().time() - began >= 1


@CLIENTS
async def test_a_client_comes_back_when_an_engine_says_so(ask: Ask, engine: Script) -> None:
    async with Stage() as stage:
        turns = 0

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            nonlocal turns
            turns += 1
            if turns == 1:
                writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}")
            else:
                await engine(heard, writer)

        await stage.engine(script)
        began = asyncio.get_running_loop().time()
        assert await ask(stage, 2) == "a"
        assert turns == 2
        assert asyncio.get_running_loop().time() - began >= 1


@CLIENTS
async def test_a_client_is_told_not_to_come_back_with_what_engines_die_of(ask: Ask, engine: Script) -> None:
    async def die(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with Stage() as stage:
        engines = [await stage.engine(die) for _ in range(3)]
        with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)) as told:
            await ask(stage, 2)
        assert told.value.response.headers["x-should-retry"] == "false"
        assert sum(len(each.heard) for each in engines) == 2


def refused(stage: Stage, kind: str) -> bool:
    return any(labels[2] == kind for _, labels in stage.router.metrics.counters)
