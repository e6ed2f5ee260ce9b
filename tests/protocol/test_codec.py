"""Codec and session: what goes in comes out; nothing from outside can raise anything but the two protocol errors."""

import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.protocol import messages
from agent_client.protocol.codec import FrameError, MessageError, decode, encode
from agent_client.protocol.messages import (
    FROM_AGENT,
    FROM_SERVER,
    MAX_FRAME_BYTES,
    Desired,
    Heartbeat,
    LogChunk,
    Register,
    Registered,
)
from agent_client.protocol.session import Closed, Received, Rejected, Role, RoundTrip, Session, SessionState, Stale
from agent_client.protocol.states import CloseCode
from tests.protocol.samples import SAMPLES


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: m.TYPE)
def test_every_message_survives_a_round_trip(message: typing.Any) -> None:
    accept = FROM_AGENT if type(message) in FROM_AGENT else FROM_SERVER
    assert decode(encode(message, seq=7), accept=accept) == (message, 7)


def test_the_samples_show_every_message() -> None:
    assert {type(sample) for sample in SAMPLES} == set(messages.BY_TYPE.values())


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: m.TYPE)
def test_unknown_fields_pass(message: typing.Any) -> None:
    accept = FROM_AGENT if type(message) in FROM_AGENT else FROM_SERVER
    data = json.loads(encode(message, seq=1)) | {"of_a_later_version": {"x": [1]}}
    assert decode(json.dumps(data), accept=accept)[0] == message


def test_an_answer_of_an_agent_that_lists_no_problems_is_read_and_a_later_ones_fields_pass() -> None:
    told = {"type": "checked", "seq": 1, "check": 2, "code": "engine_missing", "detail": "cannot start it"}
    message, _ = decode(json.dumps(told), accept=FROM_AGENT)
    assert message == messages.Checked(check=2, code="engine_missing", detail="cannot start it")
    told["problems"] = [{"code": "model_missing", "text": "cannot start it", "of_a_later_version": 1}]  # type: ignore[assignment]
    message, _ = decode(json.dumps(told), accept=FROM_AGENT)
    assert isinstance(message, messages.Checked)
    assert message.problems == (messages.ToldProblem(code="model_missing", text="cannot start it"),)


@given(st.text() | st.binary())
def test_any_frame_is_a_message_or_a_protocol_error(frame: str | bytes) -> None:
    try:
        decode(frame, accept=FROM_AGENT)
    except (FrameError, MessageError):
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_wrong_value_in_any_field_is_refused_by_name_or_accepted(message: typing.Any, data: st.DataObject) -> None:
    accept = FROM_AGENT if type(message) in FROM_AGENT else FROM_SERVER
    frame = json.loads(encode(message, seq=1))
    field = data.draw(st.sampled_from([f.name for f in dataclasses.fields(message)] or ["seq"]))
    frame[field] = data.draw(JSON)
    refused = ""
    try:
        decode(json.dumps(frame), accept=accept)
    except MessageError as error:
        refused = error.about
    assert refused in ("", message.TYPE)


def test_secrets_are_not_in_the_representation() -> None:
    shown = repr(SAMPLES)
    assert "CANARY" not in shown


def open_pair() -> tuple[Session, Session]:
    agent, server = Session(Role.AGENT, now=0), Session(Role.SERVER, now=0)
    agent.send(next(m for m in SAMPLES if isinstance(m, Register)))
    deliver(agent, server, 0)
    server.send(next(m for m in SAMPLES if isinstance(m, Registered)))
    deliver(server, agent, 0)
    assert agent.state is server.state is SessionState.OPEN
    return agent, server


def deliver(sender: Session, receiver: Session, now: float) -> list[typing.Any]:
    return [event for frame in sender.frames() for event in receiver.receive(frame, now)]


def test_a_ping_that_is_answered_is_a_round_trip() -> None:
    agent, server = open_pair()
    server.ping(1)
    deliver(server, agent, 1.2)
    assert deliver(agent, server, 1.5) == [RoundTrip(seconds=0.5)]


def test_a_silent_peer_is_found_within_half_a_minute() -> None:
    agent, _ = open_pair()
    now, ended = 0.0, []
    while not ended and now < 60:
        now = agent.next_deadline()
        ended = agent.tick(now)
        agent.frames()
    assert isinstance(ended[0], Closed)
    assert ended[0].code is CloseCode.TIMEOUT
    assert now <= 30


def test_doubled_and_late_frames_change_nothing() -> None:
    agent, server = open_pair()
    agent.send(Heartbeat(desired_revision=1))
    agent.send(Heartbeat(desired_revision=2))
    first, second = agent.frames()
    assert isinstance(server.receive(second, 1)[0], Received)
    assert isinstance(server.receive(second, 1)[0], Stale)
    assert isinstance(server.receive(first, 1)[0], Stale)


def test_an_unknown_message_is_answered_and_closes_nothing() -> None:
    agent, server = open_pair()
    assert isinstance(server.receive('{"type":"dance","seq":99}', 1)[0], Rejected)
    assert server.state is SessionState.OPEN
    (event,) = deliver(server, agent, 1)
    assert event.message.code == "unknown_type"
    assert "dance" in event.message.detail


@pytest.mark.parametrize("frame", ["{", "[]", "null", '{"seq":1}', "\ud800", "x" * 10])
def test_a_broken_frame_closes_with_its_reason(frame: str) -> None:
    _, server = open_pair()
    (closed,) = server.receive(frame, 1)
    assert closed.code is CloseCode.BAD_FRAME
    assert closed.reason.startswith("cannot")


def test_a_frame_over_a_mebibyte_is_refused_on_both_sides() -> None:
    agent, server = open_pair()
    (closed,) = server.receive("x" * (2 * MAX_FRAME_BYTES), 1)
    assert closed.code is CloseCode.TOO_BIG
    with pytest.raises(FrameError, match="cannot send log_chunk"):
        agent.send(LogChunk(shard="s", epoch=1, lines=("x" * MAX_FRAME_BYTES,)))


def test_registration_comes_first() -> None:
    server = Session(Role.SERVER, now=0)
    (closed,) = server.receive(encode(Heartbeat(), seq=1), 0)
    assert "register" in closed.reason
    assert Desired(revision=1).shards == ()


def test_the_protocol_page_is_fresh() -> None:
    from tests.protocol import document

    assert document.PATH.read_text(encoding="utf-8") == document.text()


def test_free_data_becomes_what_databases_take() -> None:
    inventory = '{"a\\u0000": ["\\ud800x", 1e999, 123456789012345678901234567890, true, null, {"k": "\\udcff"}]}'
    frame = '{"type": "report", "seq": 1, "shards": [], "inventory": ' + inventory + "}"
    message, _ = decode(frame, accept=tuple(FROM_AGENT))
    odd = "\N{REPLACEMENT CHARACTER}"
    assert message.inventory == {f"a{odd}": [f"{odd}x", None, None, True, None, {"k": odd}]}  # type: ignore[union-attr]


def test_text_that_no_database_takes_is_refused() -> None:
    frame = '{"type": "report", "seq": 1, "shards": [], "inventory_fingerprint": "\\ud800"}'
    with pytest.raises(MessageError, match="half a surrogate pair"):
        decode(frame, accept=tuple(FROM_AGENT))
