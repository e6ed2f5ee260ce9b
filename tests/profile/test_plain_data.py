"""What is read as a JSON object can be stored anywhere; what can't is refused with its reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_client.plain_data import MAX_INTEGER, MOST_DEPTH, UnreadableJson, flaw, read_json_object

WRONG = [
    (b"[]", "keys and values are needed, not a list"),
    (b"null", "keys and values are needed, not a NoneType"),
    (b"{", "line 1, column 2: Expecting property name"),
    (b"", "line 1, column 1: Expecting value"),
    (b'{"a": "\xff"}', "byte 8 is not UTF-8"),
    (b"\xff\xfe{\x00}\x00", "byte 1 is not UTF-8"),
    (b'{"a": 1, "a": 2}', "`a` stands there twice"),
    (b'{"a": NaN}', "NaN is not a number in JSON"),
    (b'{"a": 1e400}', "1e400 is too large a number"),
    (b'{"a": [9223372036854775808]}', "a is a number that does not fit 64 bits"),
    (b'{"a": ' + b"9" * 5_000 + b"}", "Exceeds the limit"),
    (b'{"a": {"b": ["\\ud800"]}}', "b holds NUL or half of a surrogate pair"),
    (b'{"a": {"\\u0000": 1}}', "a key of a holds NUL"),
    (b"[" * 100_000, "it is nested more than 50 deep"),
    (b'{"a":' * 50_000, "it is nested more than 50 deep"),
    (b'{"a": ' + b"[" * MOST_DEPTH + b"]" * MOST_DEPTH + b"}", "it is nested more than 50 deep"),
]


@pytest.mark.parametrize(("body", "text"), WRONG)
def test_what_can_not_be_stored_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(UnreadableJson, match=text.replace("[", "\\[")):
        read_json_object(body)


def test_what_just_fits_is_read() -> None:
    within = MOST_DEPTH - 1
    deep = b'{"a": ' + b"[" * within + b"]" * within + b"}"
    assert read_json_object(deep) == json.loads(deep)
    largest = {"a": [MAX_INTEGER, -MAX_INTEGER, 1e308], "é": "\U0001f4a5"}
    assert read_json_object(json.dumps(largest).encode()) == largest


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_what_has_no_flaw_is_read_as_it_was(value: Any) -> None:
    body = json.dumps({"a": value}).encode()
    if flaw(value):
        with pytest.raises(UnreadableJson):
            read_json_object(body)
    else:
        assert read_json_object(body) == {"a": value}
