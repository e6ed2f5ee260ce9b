"""What a profile may say about where it runs."""

from typing import Any

import pytest

from agent_client.profile import Arrangement, Profile, ProfileError, parse_profile


def profile(**fields: Any) -> Profile:
    return parse_profile({"engine": "vllm", "model": "m", **fields})


def test_all_fields_survive_the_way_to_the_file_and_back() -> None:
    given = profile(
        min_compute_capability=9.0,
        arrangement="spread",
        affinity="tokenizer",
        anti_affinity=["qwen", "llama"],
        priority=5,
        preempts=True,
    )
    assert given.min_compute_capability == "9.0"
    assert given.arrangement is Arrangement.SPREAD
    assert given.affinity == ("tokenizer",)
    assert parse_profile(given.to_dict()) == given


def test_nothing_said_changes_nothing() -> None:
    assert profile().to_dict() == {"engine": "vllm", "model": "m"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"min_compute_capability": "nine"}, "profile.min_compute_capability"),
        ({"min_compute_capability": True}, "profile.min_compute_capability"),
        ({"min_compute_capability": "9.0", "gpus": 0}, "profile.min_compute_capability"),
        ({"arrangement": "tidy"}, "profile.arrangement"),
        ({"priority": 1001}, "profile.priority"),
        ({"preempts": "yes"}, "profile.preempts"),
        ({"affinity": ["a"], "anti_affinity": ["a"]}, "profile.anti_affinity"),
        ({"affinity": [1]}, "profile.affinity"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ProfileError) as wrong:
        profile(**fields)
    assert [problem.field for problem in wrong.value.problems] == [field]


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        ({}, 1),
        ({"tensor_parallel": 4}, 4),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, 2),
        ({"data_parallel": 4}, 1),
        ({"gpus": 4}, 4),
        ({"gpus": 0}, 1),
        ({"tensor_parallel": 16, "nodes": 2}, 16),
    ],
)
def test_the_group_that_needs_nvlink_is_the_tensor_parallel_one(fields: dict[str, Any], group: int) -> None:
    assert profile(**fields).group == group
