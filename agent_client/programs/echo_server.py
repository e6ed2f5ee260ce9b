"""An OpenAI-compatible server without a model: it answers with the words it was asked. Standard library only.

It is honest about that (`system_fingerprint` is "echo"). Its knobs make it slow, stuck or broken on purpose, so that
supervision and routing can be tried without a GPU.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

Headers = dict[str, str]
KEY_VARIABLE = "LLMGW_ENGINE_KEY"
EMBEDDING_SIZE = 16


class EchoServer:
    def __init__(self, args: argparse.Namespace, key: str | None) -> None:
        self.args = args
        self.key = key
        self.running = 0
        self.served = 0
        self.prompt_tokens = 0
        self.generated = 0

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        body = await _body(reader, headers)
        if self.args.hang:
            await asyncio.sleep(86_400)
        path = path.split("?", 1)[0]
        if path.startswith("/v1") and self.key and headers.get("authorization") != f"Bearer {self.key}":
            self._json(writer, 401, {"error": "Unauthorized"})
        elif method == "GET":
            self._get(writer, path)
        else:
            return await self._guarded(reader, writer, path, body)
        await writer.drain()
        return True

    async def _guarded(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes
    ) -> bool:
        """Answer, and drop the work as soon as the client leaves."""
        work = asyncio.ensure_future(self._post(writer, path, body))
        gone = asyncio.ensure_future(reader.read(1))
        self.running += 1
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return False
            work.result()
            return False  # one request a connection once it was watched: the byte read ahead would be lost
        finally:
            self.running -= 1
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    def _json(self, writer: asyncio.StreamWriter, status: int, data: Any, *, close: bool = False) -> None:
        payload = json.dumps(data).encode()
        self._write(writer, status, "application/json", payload, close=close)

    def _write(self, writer: asyncio.StreamWriter, status: int, kind: str, payload: bytes, *, close: bool) -> None:
        connection = "Connection: close\r\n" if close else ""
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\nContent-Type: {kind}\r\n"
        writer.write(f"{head}{connection}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)

    def _get(self, writer: asyncio.StreamWriter, path: str) -> None:
        if path == "/health":
            self._write(writer, 200, "text/plain", b"", close=False)
        elif path == "/v1/models":
            data = [{"id": name, "object": "model", "owned_by": "echo"} for name in self.args.served_model_name]
            self._json(writer, 200, {"object": "list", "data": data})
        elif path == "/metrics":
            self._write(writer, 200, "text/plain; version=0.0.4", self._metrics().encode(), close=False)
        else:
            self._error(writer, 404, "NotFoundError", f"there is no {path} here")

    def _metrics(self) -> str:
        rows = {
            "vllm:num_requests_running": self.running,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0,
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:generation_tokens_total": self.generated,
            "vllm:request_success_total": self.served,
        }
        return "".join(f"{name} {value}\n" for name, value in rows.items())

    def _error(self, writer: asyncio.StreamWriter, status: int, kind: str, message: str) -> None:
        error = {"message": message, "type": kind, "param": None, "code": status}
        self._json(writer, status, {"error": error}, close=True)

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _post(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
        try:
            asked = json.loads(body)
            assert isinstance(asked, dict)
        except (ValueError, AssertionError):
            return self._error(writer, 400, "BadRequestError", "the body is no JSON object")
        if asked.get("model") not in self.args.served_model_name:
            return self._error(writer, 404, "NotFoundError", f"The model `{asked.get('model')}` does not exist.")
        if path == "/v1/embeddings":
            return self._embed(writer, asked)
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return self._error(writer, 404, "NotFoundError", f"there is no {path} here")
        chat = path == "/v1/chat/completions"
        words = _words(asked, chat)
        if self.args.crash_on and self.args.crash_on in words:
            os._exit(13)
        if self.args.hang_after_load:
            await asyncio.sleep(86_400)
        await asyncio.sleep(self.args.first_byte_delay)
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        reply = words[:limit] if isinstance(limit, int) and limit > 0 else words
        self.prompt_tokens += len(words)
        if asked.get("stream"):
            await self._stream(writer, asked, chat, words, reply)
        else:
            await self._whole(writer, asked, chat, words, reply)
        self.served += 1

    async def _whole(
        self, writer: asyncio.StreamWriter, asked: dict[str, Any], chat: bool, words: list[str], reply: list[str]
    ) -> None:
        await asyncio.sleep(self.args.chunk_delay * len(reply))
        self.generated += len(reply)
        text = " ".join(reply)
        part: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": "stop"}
        kind = "chat.completion" if chat else "text_completion"
        usage = _usage(len(words), len(reply))
        self._json(writer, 200, {**_frame(asked, kind), "choices": [choice], "usage": usage}, close=True)
        await writer.drain()

    async def _stream(
        self, writer: asyncio.StreamWriter, asked: dict[str, Any], chat: bool, words: list[str], reply: list[str]
    ) -> None:
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        frame = _frame(asked, "chat.completion.chunk" if chat else "text_completion")
        async for word, last in self._paced(reply):
            text = word if last else word + " "
            part: dict[str, Any] = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, **part, "logprobs": None, "finish_reason": "stop" if last else None}
            _event(writer, json.dumps({**frame, "choices": [choice]}))
            self.generated += 1
            await writer.drain()
        if (asked.get("stream_options") or {}).get("include_usage"):
            _event(writer, json.dumps({**frame, "choices": [], "usage": _usage(len(words), len(reply))}))
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _paced(self, reply: list[str]) -> AsyncIterator[tuple[str, bool]]:
        for i, word in enumerate(reply):
            if i:
                await asyncio.sleep(self.args.chunk_delay)
            yield word, i == len(reply) - 1

    def _embed(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        given = asked.get("input")
        texts = given if isinstance(given, list) else [given]
        data = [{"object": "embedding", "index": i, "embedding": _vector(str(t))} for i, t in enumerate(texts)]
        count = sum(len(str(text).split()) for text in texts)
        usage = {"prompt_tokens": count, "total_tokens": count}
        self._json(writer, 200, {"object": "list", "model": asked["model"], "data": data, "usage": usage}, close=True)


async def _body(reader: asyncio.StreamReader, headers: Headers) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)
    return await reader.readexactly(int(headers.get("content-length") or 0))


def _words(asked: dict[str, Any], chat: bool) -> list[str]:
    if not chat:
        prompt = asked.get("prompt")
        return (" ".join(map(str, prompt)) if isinstance(prompt, list) else str(prompt or "")).split() or ["(empty)"]
    messages = [m for m in asked.get("messages") or [] if isinstance(m, dict)]
    last = messages[-1].get("content") if messages else ""
    if isinstance(last, list):
        last = " ".join(str(part.get("text", "")) for part in last if isinstance(part, dict))
    return str(last or "").split() or ["(empty)"]


def _frame(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    created = int(time.time())
    number = f"echo-{time.monotonic_ns():x}"
    return {"id": number, "object": kind, "created": created, "model": asked["model"], "system_fingerprint": "echo"}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _vector(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [round(byte / 127.5 - 1, 6) for byte in digest[:EMBEDDING_SIZE]]


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    payload = f"data: {data}\n\n".encode()
    writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="echo_server", allow_abbrev=False)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--served-model-name", nargs="+", default=["echo"])
    p.add_argument("--load-seconds", type=float, default=0.0, help="wait before listening, as an engine that loads")
    p.add_argument("--chunk-delay", type=float, default=0.0, help="seconds between words")
    p.add_argument("--first-byte-delay", type=float, default=0.0)
    p.add_argument("--exit-code", type=int, default=None, help="exit with this code after --exit-after")
    p.add_argument("--exit-after", type=float, default=0.0)
    p.add_argument("--crash-on", default="", help="die when this word is asked")
    p.add_argument("--hang", action="store_true", help="accept connections and never answer")
    p.add_argument("--hang-after-load", action="store_true", help="healthy, but no word ever comes")
    p.add_argument("--ignore-sigterm", action="store_true")
    p.add_argument("--flood", action="store_true", help="write to stdout without end")
    p.add_argument("--spawn-child", action="store_true", help="leave a grandchild of another session behind")
    return p


async def run(args: argparse.Namespace, key: str | None) -> int:
    """Serve until SIGTERM; the exit code."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        if args.ignore_sigterm:
            loop.add_signal_handler(number, lambda: None)
        else:
            loop.add_signal_handler(number, _end, ended, 0)
    if args.spawn_child:
        _leave_child()
    if args.exit_code is not None:
        loop.call_later(args.exit_after, _end, ended, args.exit_code)
    flood = loop.run_in_executor(None, _flood) if args.flood else None
    await asyncio.wait({ended}, timeout=args.load_seconds)
    if ended.done():
        return ended.result()
    server = await asyncio.start_server(EchoServer(args, key).serve, args.host, args.port, limit=2**20)
    with contextlib.suppress(OSError):  # a full disk is no reason to end
        sys.stderr.write(
            f"echo engine listening on http://{args.host}:{args.port}; it has no model, it says words back\n"
        )
        sys.stderr.flush()
    async with server:
        code = await ended
    if flood:
        os._exit(code)
    return code


def _end(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def _leave_child() -> None:
    """A child of a session of its own, as engines' grandchildren are: only its environment tells where it came from."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)


def _flood() -> None:
    block = b"x" * 65_536
    while True:
        os.write(1, block)


def main() -> int:
    args = parser().parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(run(args, os.environ.get(KEY_VARIABLE)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
