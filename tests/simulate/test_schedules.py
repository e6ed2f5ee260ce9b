"""Seeded fault schedules over the whole control loop."""

import asyncio

import pytest

from fleet.models import Replica
from tests.simulate.world import World, world

pytestmark = pytest.mark.django_db(transaction=True)


async def calm(w: World) -> None:
    w.start_web()
    w.start_worker()
    for m in w.machines:
        w.start_agent(m)
    await w.sleep(3)
    w.wish("a", 2, 2)
    await w.sleep(30)
    from fleet.models import Event, Node
    print(list(Event.objects.values_list("text",flat=True)), [(n.name,n.status,n.engines) for n in Node.objects.all()], w.loop.errors)
    for t in asyncio.all_tasks(w.loop): t.print_stack(limit=1)
    print(w.log, [(r.label, r.state, r.reason) for r in Replica.objects.select_related("model")], len(w.kernel.alive()))
    assert {r.state for r in Replica.objects.all()} == {"ready"}


def test_a_calm_world(monkeypatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    import time
    t = time.time()
    with world(1) as w:
        w.run(calm)
    print(time.time() - t)
