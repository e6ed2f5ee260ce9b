"""What routers see under way, on its way to the control plane: with it a hung engine is told from a busy one."""

import asyncio
import json
import time
from pathlib import Path

from fleet.endpoints import FlowWord
from routing.feed import flows
from tests.routing.stage import CHAT, Heard, Stage, chunk, stream_head, until, wait


async def test_a_token_moves_the_flow_and_the_head_of_an_answer_does_not(stage: Stage) -> None:
    more = asyncio.Event()

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head())
        await more.wait()
        writer.write(chunk(b'data: {"choices": []}\n\n'))

    await stage.engine(script)
    assert stage.router.flows() == []
    before = time.monotonic()
    wire = await stage.open()
    wire.post(CHAT | {"stream": True})
    assert b"200" in await wait(wire.reader.readuntil(b"\r\n"))
    (silent,) = stage.router.flows()
    assert (silent["endpoint"], silent["in_flight"]) == ("e0", 1)
    assert before <= silent["moved_at"] <= time.monotonic()
    await asyncio.sleep(0.01)  # the loop's clock goes in milliseconds
    more.set()
    await until(lambda: stage.router.flows()[0]["moved_at"] > silent["moved_at"], "the token")
    wire.writer.close()
    await until(lambda: not stage.router.flows(), "the end")


def test_the_words_of_a_machine_s_children_are_one_and_those_of_ended_ones_are_left_out(tmp_path: Path) -> None:
    def child(name: str, at: float, *rows: tuple[str, int, float]) -> None:
        told = [{"endpoint": endpoint, "in_flight": count, "moved_at": moved} for endpoint, count, moved in rows]
        (tmp_path / f"{name}.json").write_text(json.dumps({"metrics": [], "ejections": [], "flows": told, "at": at}))

    child("0", 99.5, ("a/1#1", 2, 40.0), ("b/1#1", 1, 99.0))
    child("1", 99.9, ("a/1#1", 1, 90.0))
    child("2", 80.0, ("a/1#1", 7, 80.0))  # it has ended
    child("3", 500.0, ("a/1#1", 7, 500.0))  # before the machine was started anew
    (tmp_path / "4.json").write_text('{"metrics": []}')  # of an older version
    assert flows(tmp_path, 100.0) == [
        FlowWord(endpoint="a/1#1", in_flight=3, silent_seconds=10.0),
        FlowWord(endpoint="b/1#1", in_flight=1, silent_seconds=1.0),
    ]
    assert flows(tmp_path / "nothing", 100.0) == []
