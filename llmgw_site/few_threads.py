"""Requests are answered in a few threads that last, and each thread keeps one connection to the database.

Django alone gives every request a thread of its own. Each opens a connection, and leaves it open when it ends: three
hundred requests took all hundred that PostgreSQL has by default, and the agents' heartbeats found none.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext

from llmgw_site.failures import refusal

#: Seconds that a request waits for a thread: below those of proxies, whose answer would name no cause.
PATIENCE = 20.0
#: Asked to learn whether the process lives. It asks no database, and a busy process needs no restart.
HEALTH = "/healthz"


class FewThreads:
    """An ASGI application that lends one of `count` threads to each request of the one behind it."""

    def __init__(self, application: Any, count: int, patience: float = PATIENCE) -> None:
        self.application, self.count, self.patience = application, count, patience
        # The one that was given back last is lent first, so that seldom more connections are open than are in use.
        self._free: asyncio.LifoQueue[ThreadPoolExecutor] = asyncio.LifoQueue()
        for number in range(count):
            self._free.put_nowait(ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"request-{number}"))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == HEALTH:
            return await self.application(scope, receive, send)
        try:
            async with asyncio.timeout(self.patience):
                thread = await self._free.get()
        except TimeoutError:
            return await self._refuse(scope["path"], send)
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self.application(scope, receive, send)
        finally:
            self._give_back(thread)

    def _give_back(self, thread: ThreadPoolExecutor) -> None:
        """Once it is idle: where the client has left, the view may still be at work."""
        loop = asyncio.get_running_loop()
        idle = thread.submit(lambda: None)
        idle.add_done_callback(lambda _: loop.call_soon_threadsafe(self._free.put_nowait, thread))

    async def _refuse(self, path: str, send: Any) -> None:
        detail = f"cannot answer now: {self.count} requests are being answered, and none ended in {self.patience:g} s"
        hint = "try again shortly; with more LLMGW_WEB_CONNECTIONS more are answered at once"
        answer = refusal(path, 503, "busy", detail, hint)
        headers = [(name.encode(), value.encode()) for name, value in answer.items()]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.content})
