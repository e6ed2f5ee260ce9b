"""How much of what is wrong is told, and that looking at it stays cheap."""

from typing import Any

import pytest

from agent_client.profile import ProfileError, parse_catalog, parse_entry, parse_profile


@pytest.mark.parametrize("name", ["env", "options", "node_selector", "extra_args", "affinity"])
def test_more_entries_than_any_engine_is_given_are_refused_in_one_sentence(name: str) -> None:
    entries: object = {f"A{n}": "x" for n in range(200_000)}
    if name in ("extra_args", "affinity"):
        entries = ["--x"] * 200_000
    with pytest.raises(ProfileError) as caught:
        parse_profile({"engine": "echo", name: entries})
    assert str(caught.value) == f"cannot use profile.{name}: it has 200000 entries, at most 1000 are allowed"


def test_of_many_unknown_keys_some_are_told_and_the_others_counted() -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile({"engine": "echo", **{f"what{n}": 1 for n in range(200_000)}})
    told = caught.value.problems
    assert len(told) == 21
    assert told[-1].text == "cannot use profile: 199980 more of its keys are not known"


def told(data: Any) -> list[str]:
    with pytest.raises(ProfileError) as error:
        parse_entry(data)
    return [problem.text for problem in error.value.problems]


def test_a_name_that_is_told_again_and_again_is_told_once() -> None:
    texts = told({"name": "m", "aliases": ["a"] * 900 + ["m"], "profile": {"engine": "echo"}})
    assert texts == [
        "cannot use m: the model name 'm' stands there twice",
        "cannot use m: the model name 'a' stands there 900 times",
    ]


@pytest.mark.parametrize("name", ["plan", "org/rollback", "a/b/rollout"])
def test_no_name_ends_like_an_address_of_the_api(name: str) -> None:
    (text,) = told({"name": name, "profile": {"engine": "echo"}})
    assert text.startswith(f"cannot use the name {name!r}: in the API's addresses")
    parse_entry({"name": f"{name}s", "aliases": [name], "profile": {"engine": "echo"}})


def test_a_name_that_begins_with_a_dot_is_told_what_it_may_begin_with() -> None:
    assert told({"name": "..", "profile": {"engine": "echo"}}) == [
        "cannot use the name '..': a letter or digit, then letters, digits and . _ / : -, 127 at most, are allowed"
    ]


def test_of_an_engine_that_nobody_knows_no_model_is_asked_for() -> None:
    assert len(told({"name": "m", "profile": {"engine": "vlm"}})) == 1
    assert len(told({"name": "m", "profile": {}})) == 2


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("node_selector", {"": "a"}, "cannot use m.profile.node_selector: a label has no name"),
        ("node_selector", ["a"], "cannot use m.profile.node_selector = ['a']: a mapping of keys to values is needed"),
        ("env", {"A\nB": "x"}, r"cannot use m.profile.env: 'A\nB' is no name of a variable"),
        ("node_selector", {"a\nb": [1]}, r"cannot use m.profile.node_selector: the value of 'a\nb' must be text"),
        ("env", {"A": {"secret": " "}}, "cannot use m.profile.env.A: text or {secret: NAME} is needed"),
    ],
)
def test_what_names_nothing_is_refused(field: str, value: Any, text: str) -> None:
    assert told({"name": "m", "profile": {"engine": "echo", field: value}}) == [text]


def test_a_key_may_name_every_model_of_a_large_catalog() -> None:
    key = {"name": "ci", "prefix": "k3v9x2mq", "sha256": "0" * 64, "models": [f"m{n}" for n in range(20_000)]}
    assert len(parse_catalog({"models": [], "keys": [key]}).keys[0].models or ()) == 20_000
