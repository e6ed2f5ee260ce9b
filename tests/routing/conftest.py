"""The router's tests run on the event loop that the router runs on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from tests.routing.stage import Stage

# A busy machine makes an example slow, which says nothing about it.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as stage:
        yield stage
