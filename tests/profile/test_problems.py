"""How much of what is wrong is told, and that looking at it stays cheap."""

import pytest

from agent_client.profile import ProfileError, parse_catalog, parse_profile


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


def test_a_key_may_name_every_model_of_a_large_catalog() -> None:
    key = {"name": "ci", "prefix": "k3v9x2mq", "sha256": "0" * 64, "models": [f"m{n}" for n in range(20_000)]}
    assert len(parse_catalog({"models": [], "keys": [key]}).keys[0].models or ()) == 20_000
