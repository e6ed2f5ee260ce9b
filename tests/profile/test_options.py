"""The knobs of one engine kind are looked at like every other field."""

from typing import Any

import pytest

from agent_client.engines import PlanError, preview
from agent_client.profile import ProfileError, parse_entry, parse_profile

LLAMA = {"engine": "llamacpp", "model": "/m.gguf", "gpus": 0}
CUSTOM = {"engine": "custom", "gpus": 0}


@pytest.mark.parametrize("value", ["abc", "4", True, 0, -2, 1.5, 10**9, [4], {}])
def test_a_number_of_slots_is_a_number_of_slots(value: Any) -> None:
    with pytest.raises(ProfileError, match=r"cannot use profile\.options\.parallel = .*a whole number from 1 to 1024"):
        parse_profile(LLAMA | {"options": {"parallel": value}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("command", "serve --port {port}"),
        ("command", [1]),
        ("command", {"a": "b"}),
        ("health_path", "health"),
        ("health_path", ["/health"]),
        ("health_path", "/a b"),
        ("models_path", "http://elsewhere/"),
        ("models_path", 5),
        ("probe", "no"),
    ],
)
def test_a_custom_engine_s_options_are_what_they_should_be(name: str, value: Any) -> None:
    with pytest.raises(ProfileError, match=rf"cannot use profile\.options\.{name} = "):
        parse_profile(CUSTOM | {"options": {"command": ["serve"]} | {name: value}})


def test_no_number_of_slots_is_the_usual_one() -> None:
    words = preview.command(parse_profile(LLAMA | {"options": {"parallel": None}}), ("m",)).argv
    assert words[words.index("--parallel") + 1] == "4"


def test_a_custom_engine_may_have_no_list_of_models() -> None:
    for path in (None, ""):
        profile = parse_profile(CUSTOM | {"options": {"command": ["serve"], "models_path": path, "probe": False}})
        readiness = preview.command(profile, ("m",)).readiness
        assert (readiness.models_path, readiness.chat) == (None, False)


@pytest.mark.parametrize(
    "word", ["{nope}", "{}", "{0}", "{model.__class__}", "{name[0]}", "{port:>999999999}", "{name!r}", "{"]
)
def test_a_placeholder_is_a_name_and_nothing_else(word: str) -> None:
    profile = parse_profile(CUSTOM | {"options": {"command": ["serve", word]}})
    with pytest.raises(PlanError, match="the custom command has an unknown placeholder"):
        preview.command(profile, ("m",))


def test_no_option_is_written_with_characters_that_nobody_sees() -> None:
    entry = parse_entry({"name": "m", "profile": LLAMA | {"extra_args": ["--\x1b[31mfoo"]}})
    (problem,) = preview.problems(entry)
    assert problem.text == r"cannot use '--\x1b[31mfoo' in extra_args: no option is written so"
