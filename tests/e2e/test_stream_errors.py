"""What goes wrong on the agents' stream is told on both sides and disturbs nobody else."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from agent_client.protocol.codec import encode
from agent_client.protocol.messages import Register
from tests.e2e.harness import SECRET, House, wait_for

# A whole control plane. What the consumer makes of each frame, tests/fleet/test_sessions.py and others show without.
pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    try:
        house.bus()
        shutil.copy(migrated, house.folder / migrated.name)
        house.key = house.manage("router_key", "e2e", "--manage")
        house.control_plane()
        house.agent("bystander")
        wait_for(lambda: house.node("bystander")["status"] == "ready", "the bystander")
        yield house
        assert house.node("bystander")["status"] == "ready"
    finally:
        house.close()


def dial(house: House, secret: str = SECRET) -> ClientConnection:
    return connect(
        f"ws://127.0.0.1:{house.web_port}/agent/v1/stream",
        additional_headers={"Authorization": f"Bearer {secret}"},
        compression=None,
        proxy=None,
        max_size=4 * 2**20,
    )


def register(name: str, **fields: Any) -> str:
    values: dict[str, Any] = {
        "protocol": 1,
        "agent_version": "0",
        "machine_id": "m",
        "boot_id": "b",
        "instance_id": "i",
        "hostname": "h",
        "mgmt_addr": "127.0.0.1",
    }
    return encode(Register(node_id=name, **(values | fields)), seq=1)


def hear(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while (message := json.loads(socket.recv(timeout=10)))["type"] != kind:
        pass
    return dict(message)


def closed(socket: ClientConnection) -> int:
    try:
        while True:
            socket.recv(timeout=10)
    except ConnectionClosed:
        return socket.close_code or 0


def test_a_wrong_join_secret_is_told(house: House) -> None:
    with dial(house, "wrong") as socket:
        error = hear(socket, "error")
        assert error["code"] == "join_secret_wrong"
        assert "join secret is wrong" in error["detail"]
        assert closed(socket) == 4401
    house.agent("stranger", LLMGW_AGENT_JOIN_SECRET="CANARY-wrong")
    log = house.folder / "stranger.log"
    wait_for(lambda: "join secret is wrong" in log.read_text(), "the agent's own words")
    assert "CANARY" not in log.read_text() + (house.folder / "web.log").read_text()
    house.kill("stranger")


def test_an_unknown_message_closes_nothing(house: House) -> None:
    with dial(house) as socket:
        socket.send(register("odd"))
        hear(socket, "registered")
        socket.send('{"type": "dance", "seq": 2}')
        assert hear(socket, "error")["code"] == "unknown_type"
        socket.send('{"type": "ping", "seq": 3, "number": 9}')
        assert hear(socket, "pong")["number"] == 9


@pytest.mark.parametrize(("frame", "code"), [("{broken", 4400), ("x" * 2 * 2**20, 4413)], ids=["json", "2 MiB"])
def test_a_broken_frame_closes_with_its_reason(house: House, frame: str, code: int) -> None:
    with dial(house) as socket:
        socket.send(register(f"odd-frames-{code}"))
        hear(socket, "registered")
        socket.send(frame)
        assert hear(socket, "error")["detail"].startswith("cannot")
        assert closed(socket) == code


def test_a_second_agent_with_the_same_node_id_is_refused(house: House) -> None:
    with dial(house) as socket:
        socket.send(register("bystander"))
        error = hear(socket, "error")
        assert error["code"] == "node_id_taken"
        assert "cannot register bystander" in error["detail"]
        assert closed(socket) == 4403
    events = [event["kind"] for event in house.api("events/")["results"]]
    assert "node_id_taken" in events


def test_another_protocol_version_gets_a_sentence_with_both(house: House) -> None:
    with dial(house) as socket:
        socket.send(register("old", protocol=99))
        error = hear(socket, "error")
        assert error["code"] == "protocol_unsupported"
        assert "protocol 99, this control plane" in error["detail"]
        assert "pip install -r requirements-agent.txt" in error["hint"]
        assert closed(socket) == 4426


def test_the_newest_session_wins(house: House) -> None:
    with dial(house) as first:
        first.send(register("twice", boot_id="b1"))
        told = hear(first, "registered")
        same = {"node_uid": told["node_uid"], "credential": told["credential"], "boot_id": "b1"}
        with dial(house) as second:
            second.send(register("twice", **same))
            hear(second, "registered")
            assert house.node("twice")["connected"]  # at once: a stream without heartbeats is closed soon
            assert closed(first) == 4409


def test_nothing_secret_is_in_the_logs(house: House) -> None:
    for log in Path(house.folder).glob("*.log"):
        assert SECRET not in log.read_text(errors="replace"), log
