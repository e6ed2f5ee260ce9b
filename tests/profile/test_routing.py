"""How a model is served: each wrong value has its sentence, and what is right comes back as it was."""

from typing import Any

import pytest

from agent_client.profile import EngineTimers, ProfileError, Routing, parse_entry
from routing.domain.timers import Timers
from routing.table import Route

ENTRY = {"name": "m", "endpoints": [{"url": "http://10.0.0.5:8000"}]}


@pytest.mark.parametrize(
    ("routing", "sentence"),
    [
        ({"concurrency": -1}, "cannot use m.routing.concurrency = -1: a whole number from 0 to 1000000 is needed"),
        ({"queue": 1.5}, "cannot use m.routing.queue = 1.5: a whole number"),
        ({"queue_seconds": -1}, "cannot use m.routing.queue_seconds = -1: a number from 0 to 86400 is needed"),
        ({"hold_seconds": float("nan")}, "cannot use m.routing.hold_seconds = nan: a number"),
        ({"hold_seconds": True}, "cannot use m.routing.hold_seconds = True: a number"),
        ({"affinity": "yes"}, "cannot use m.routing.affinity = 'yes': true or false is needed"),
        ({"sticky": "a b"}, "cannot use m.routing.sticky = 'a b': the name of a header is needed"),
        ({"sticky": "X" * 61}, "cannot use m.routing.sticky = 'XXX"),
        (
            {"timers": {"connect": 0}},
            "cannot use m.routing.timers.connect = 0: a number above 0, at most 300 is needed",
        ),
        ({"timers": {"conect": 1}}, "cannot use m.routing.timers: `conect` is not known"),
        ({"timers": {"total": 10, "first_byte": 10}}, "cannot use m.routing.timers.first_byte = 10: m.routing.timers"),
        ({"timers": [1]}, "cannot read m.routing.timers: keys and values are needed"),
        ([1], "cannot read m.routing: keys and values are needed"),
        ({"retries": 3}, "cannot use m.routing: `retries` is not known"),
    ],
)
def test_a_wrong_value_is_refused_with_its_sentence(routing: Any, sentence: str) -> None:
    with pytest.raises(ProfileError) as refused:
        parse_entry(ENTRY | {"routing": routing})
    assert [problem.text for problem in refused.value.problems if problem.text.startswith(sentence)]


@pytest.mark.parametrize(
    "routing",
    [{}, {"concurrency": 8, "queue": 0}, {"timers": {"first_byte": 0.5}, "sticky": "X-Session"}, {"hold_seconds": 0.5}],
)
def test_what_is_right_comes_back_as_it_was(routing: dict[str, Any]) -> None:
    assert parse_entry(ENTRY | {"routing": routing}).to_dict().get("routing", {}) == routing


def test_what_is_left_out_has_the_routers_defaults() -> None:
    """Two packages that may not import each other say the same."""
    theirs, ours = Route(name="m"), Routing()
    for name in ("concurrency", "queue", "queue_seconds", "hold_seconds", "affinity"):
        assert getattr(theirs, name) == getattr(ours, name), name
    assert (theirs.sticky, ours.sticky) == (b"", "")
    for name in ("connect", "first_byte", "between_bytes", "total"):
        assert getattr(Timers(), name) == getattr(EngineTimers(), name), name
