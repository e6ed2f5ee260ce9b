"""The web process answers requests in a few threads that last: each keeps one connection, so those are few, too."""

import asyncio
import threading
import time
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async

from llmgw_site.few_threads import FewThreads


class Slow:
    """As Django is: each request in a thread-sensitive context, its view in a thread."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds
        self.now = self.most = 0
        self.threads = set[int]()
        self.lock = threading.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with ThreadSensitiveContext():
            await sync_to_async(self._view)()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def _view(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1


async def ask(application: Any, path: str = "/api/v1/nodes/") -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application({"type": "http", "path": path, "headers": []}, None, send)
    return sent[0]["status"], sent[1]["body"]


async def test_forty_requests_at_once_take_three_threads() -> None:
    slow = Slow()
    application = FewThreads(slow, 3)
    for _ in range(2):
        assert {status for status, _ in await asyncio.gather(*(ask(application) for _ in range(40)))} == {200}
    assert slow.most == 3
    assert len(slow.threads) == 3


async def test_who_waits_too_long_for_a_thread_is_told_so_and_the_health_check_never_waits() -> None:
    slow = Slow(0.5)
    application = FewThreads(slow, 1, patience=0.1)
    first = asyncio.create_task(ask(application))
    await asyncio.sleep(0.05)
    status, body = await ask(application)
    assert status == 503
    assert b'"busy"' in body
    assert b"cannot answer now: " in body
    assert (await ask(application, "/healthz"))[0] == 200
    assert (await first)[0] == 200


async def test_a_thread_whose_client_left_is_lent_again_when_its_view_has_ended() -> None:
    slow = Slow(0.3)
    application = FewThreads(slow, 1, patience=0.1)
    left = asyncio.create_task(ask(application))
    await asyncio.sleep(0.05)
    left.cancel()
    await asyncio.sleep(0)
    assert (await ask(application))[0] == 503
    await asyncio.sleep(0.3)
    assert (await ask(application))[0] == 200
    assert slow.most == 1
