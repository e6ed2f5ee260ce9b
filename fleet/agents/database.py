"""Database access from the agents' event loop: a small executor of its own, since asgiref's is one thread for all."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections

P = ParamSpec("P")
T = TypeVar("T")

#: The database is away or busy: nothing is wrong with the data, try again.
AWAY = (OperationalError, InterfaceError)

#: Each thread keeps one. They are the agents' alone: no crowd of requests stands before a heartbeat.
CONNECTIONS = 4
_EXECUTOR = ThreadPoolExecutor(max_workers=CONNECTIONS, thread_name_prefix="agents-db")


async def in_database(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    call: Callable[[], Any] = partial(_with_connection, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_EXECUTOR, call)


def _with_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()
