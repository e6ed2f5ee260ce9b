"""A whole agent process against a server of a few lines: what its end means to the engines that it started."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from websockets.asyncio.server import ServerConnection, serve

from agent_client.identity import Identity, save_identity
from agent_client.ledger import Ledger
from agent_client.link import Link
from agent_client.protocol.messages import SUBPROTOCOL, Desired, Goodbye, Message, Register, Registered, ShardStatus
from agent_client.protocol.session import Received, Role, Session
from agent_client.protocol.states import ShardState
from agent_client.supervisor import processes
from tests.agent.test_agent import order
from tests.e2e.harness import OURS, ROOT
from tests.support.ports import free_port, free_ports


class Server:
    """Says what is wanted at each registration, and keeps what it is told."""

    def __init__(self) -> None:
        self.port = free_port()
        self.told: list[Message] = []
        self.heard = asyncio.Event()

    async def talk(self, socket: ServerConnection) -> None:
        session = Session(Role.SERVER, now=time.monotonic())
        async for text in socket:
            for event in session.receive(text, time.monotonic()):
                if not isinstance(event, Received):
                    continue
                self.told.append(event.message)
                if isinstance(event.message, Register):
                    desired = Desired(revision=1, shards=(order(extra_args=["--spawn-child"]),))
                    known = {"node_uid": "n", "server_version": "0", "heartbeat_seconds": 1.0}
                    session.send(Registered(session=1, desired=desired, **known))
            for frame in session.frames():
                await socket.send(frame)
            self.heard.set()

    async def until(self, check: Any) -> Any:
        async with asyncio.timeout(30):
            while not (found := [message for message in self.told if check(message)]):
                self.heard.clear()
                await self.heard.wait()
        return found[-1]


@pytest.mark.parametrize("stop_engines", [True, False])
async def test_at_sigterm_engines_stay_unless_the_agent_was_told_to_end_them(
    tmp_path: Path, stop_engines: bool
) -> None:
    server, ports = Server(), free_ports(2)
    state = tmp_path / "state"
    file = tmp_path / "agent.yaml"
    policy = {"engines": {"echo": {}}, "ports": f"{ports[0]}-{ports[-1]}"}
    file.write_text(yaml.safe_dump({"policy": policy, "state_dir": str(state), "mgmt_addr": "127.0.0.1"}))
    argv = [sys.executable, "-m", "agent_client", "--config", str(file), "--server", f"ws://127.0.0.1:{server.port}"]
    argv += ["run", *["--stop-engines"] * stop_engines]
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    marked: dict[int, str] = {}
    async with serve(server.talk, "127.0.0.1", server.port, subprotocols=[SUBPROTOCOL]):  # type: ignore[list-item]
        with (tmp_path / "agent.log").open("wb") as log:
            agent = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=env, stdout=log, stderr=log)
        try:
            ready = await server.until(lambda m: isinstance(m, ShardStatus) and m.report.state is ShardState.READY)
            mark = processes.variable(ready.report.pids[0], processes.STATE_VARIABLE) or ""
            marked = processes.marked(mark)
            assert len(marked) == 2  # it and its child
            agent.terminate()
            async with asyncio.timeout(30):
                assert await agent.wait() == 0
            bye = await server.until(lambda m: isinstance(m, Goodbye))
            assert bye.engines_stay is not stop_engines
            assert processes.marked(mark) == ({} if stop_engines else marked)
            assert len(Ledger(state / "ledger.json").entries) == (0 if stop_engines else 1)
        finally:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
            processes.signal_all(processes.marked(mark) if marked else (), signal.SIGKILL)


async def test_a_link_that_is_cancelled_while_it_hangs_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is refused again and again is nearly always there, and heard no SIGTERM."""
    hangs_up = asyncio.Event()
    write = Link._write

    async def slow(self: Link, *args: Any) -> None:
        try:
            await write(self, *args)
        finally:
            hangs_up.set()
            await asyncio.sleep(0.3)

    async def refuse(socket: ServerConnection) -> None:
        await socket.close(4403, "no")

    async def register() -> Register:
        return Register(
            protocol=1,
            node_id="n",
            hostname="h",
            mgmt_addr="a",
            **dict.fromkeys(("machine_id", "boot_id", "instance_id", "agent_version"), "x"),
        )

    async def nothing(_: Any) -> None:
        pass

    monkeypatch.setattr(Link, "_write", slow)
    async with serve(refuse, "127.0.0.1", port := free_port(), subprotocols=[SUBPROTOCOL]):  # type: ignore[list-item]
        link = Link(
            server=f"ws://127.0.0.1:{port}",
            join_secret=None,
            node_id="n",
            register=register,
            on_registered=nothing,
            on_message=nothing,
        )
        task = asyncio.create_task(link.run())
        async with asyncio.timeout(10):
            await hangs_up.wait()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10)
        task.cancel()
        assert done


async def test_a_copy_of_a_state_folder_runs_beside_no_original(tmp_path: Path) -> None:
    """Each would end the engines of the other at every turn."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    identity = Identity(node_uid=str(tmp_path), credential="c")
    agents = []
    try:
        for name in ("first", "copy", "moved"):
            state = tmp_path / name
            state.mkdir()
            save_identity(state, identity)
            argv = [
                sys.executable,
                "-m",
                "agent_client",
                "--state-dir",
                str(state),
                "--server",
                "ws://127.0.0.1:9",
                "run",
            ]
            log = (tmp_path / f"{name}.log").open("wb")
            agents.append(await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=env, stdout=log, stderr=log))
            log.close()
            async with asyncio.timeout(30):
                while (
                    b"link.down" not in (told := (tmp_path / f"{name}.log").read_bytes())
                    and agents[-1].returncode is None
                ):
                    await asyncio.sleep(0.05)
            if name == "copy":
                assert await agents[-1].wait() == 2
                assert told.startswith(b"cannot start: another agent runs on this machine with the identity")
                agents[0].kill()  # and nothing is left of the lock
                await agents[0].wait()
            else:
                assert agents[-1].returncode is None
    finally:
        for agent in agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
