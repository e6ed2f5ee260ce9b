"""What a word among extra_args reaches, against argparse itself with each engine's complete option list."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_client.engines import LaunchSpec, PlanError, llamacpp, plan, sglang, vllm
from agent_client.engines.options import OptionTable, canonical, refused, table
from agent_client.profile import parse_profile
from agent_client.programs import echo_server
from agent_client.programs.xllamacpp_server import threads_for
from tests.e2e.harness import STANDIN
from tests.support.examples import examples

DATA = Path(__file__).parent / "data"
VLLM: list[dict[str, Any]] = json.loads((STANDIN / "options.json").read_text())["options"]
SGLANG: list[dict[str, Any]] = json.loads((DATA / "sglang_0.5.23_options.json").read_text())["options"]
LLAMA: dict[str, Any] = json.loads((DATA / "llama_options.json").read_text())
LLAMA_SERVER: list[dict[str, Any]] = LLAMA["llama_server"]["options"]
LLAMA_PYTHON = [
    {"names": [option["name"]], "takes_value": True} for option in LLAMA["llama_cpp_python_server"]["options"]
] + [{"names": ["--config_file"], "takes_value": True}]

LISTS = {"vllm": VLLM, "sglang": SGLANG, "llama_server": LLAMA_SERVER, "llama_cpp_python": LLAMA_PYTHON}


@pytest.mark.parametrize("program", LISTS)
def test_the_lists_that_come_with_the_agent_are_complete(program: str) -> None:
    expected = [
        (tuple(option["names"]), (option.get("nargs") or "1") if option["takes_value"] else "")
        for option in LISTS[program]
        if not option.get("positional")
    ]
    assert [(option.names, option.values) for option in table(program).options] == expected


def test_the_lists_of_our_own_programs_are_theirs() -> None:
    shown = {option.names for option in table("echo_server").options}
    assert shown == {tuple(action.option_strings) for action in echo_server.parser()._actions}
    source = (Path(echo_server.__file__).parent / "xllamacpp_server.py").read_text()
    names = set(re.findall(r'add_argument\("(--[\w-]+)"', source))
    assert names == set(table("xllamacpp_server").by_name)


@pytest.mark.parametrize(
    ("cpus", "threads_of_a_core", "expected"), [(1, 1, 1), (2, 1, 1), (2, 2, 1), (8, 1, 7), (8, 2, 4), (64, 2, 32)]
)
def test_a_cpu_engine_leaves_a_core_to_the_rest(cpus: int, threads_of_a_core: int, expected: int) -> None:
    assert threads_for(range(cpus), lambda cpu: str(cpu // threads_of_a_core)) == expected


ENGINES = {"vllm": (VLLM, vllm.OWNED_FLAGS), "sglang": (SGLANG, sglang.OWNED_FLAGS)}
ENGINES["llama_cpp_python"] = (LLAMA_PYTHON, llamacpp.OWNED_PYTHON_FLAGS)


def real_parser(rows: list[dict[str, Any]]) -> argparse.ArgumentParser:
    """argparse with the engine's whole list: what it makes of a word is what the engine does."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for row in rows:
        if row.get("positional"):
            continue
        options: dict[str, Any] = {"dest": canonical(row["names"][0])}
        if row["takes_value"]:
            options["nargs"] = row.get("nargs")
        else:
            options |= {"action": "store_true"}
        parser.add_argument(*map(canonical, row["names"]), **options)
    return parser


PARSERS = {program: real_parser(rows) for program, (rows, _) in ENGINES.items()}


def reached_by_argparse(program: str, words: list[str]) -> set[str]:
    """The options that argparse sets; vLLM's own parser puts `-` for `_` before it looks."""
    spelled = [
        canonical(word.split("=", 1)[0]) + word[len(word.split("=", 1)[0]) :] if word.startswith("--") else word
        for word in words
    ]
    try:
        values, _ = PARSERS[program].parse_known_args(spelled)
    except (argparse.ArgumentError, SystemExit):
        return set()
    return {name for name, value in vars(values).items() if value not in (None, False)}


@st.composite
def words(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A real name, cut short, bent, with or without a value."""
    program = draw(st.sampled_from(sorted(ENGINES)))
    _rows, owned = ENGINES[program]
    names = sorted(table(program).by_name)
    near = [name for name in names if name in {canonical(o) for o in owned}] or names
    name = draw(st.sampled_from(near) | st.sampled_from(names))
    name = name[: draw(st.integers(2, len(name)))]
    if draw(st.booleans()):
        name = name[:2] + name[2:].replace("-", "_")
    form = draw(st.sampled_from(["bare", "equals", "joined", "next"]))
    word = {"equals": f"{name}=2", "joined": f"{name}2"}.get(form, name)
    return program, [word, "2"] if form == "next" else [word]


@settings(max_examples=examples(150))
@given(words())
@example(("vllm", ["-n2"]))
@example(("vllm", ["-tp=8"]))
@example(("vllm", ["--no-enable-expert-parallel"]))
@example(("sglang", ["--tensor-parallel", "2"]))
def test_no_word_reaches_an_owned_option_unseen(given_words: tuple[str, list[str]]) -> None:
    program, arguments = given_words
    rows, owned = ENGINES[program]
    known = table(program)
    own = {
        canonical(row["names"][0]) for row in rows if {canonical(n) for n in row["names"]} & set(map(canonical, owned))
    }
    reached = reached_by_argparse(program, arguments)
    if reached & own:
        assert list(refused(arguments, known, owned)), (arguments, reached)


@pytest.mark.parametrize("program", LISTS)
def test_exact_names_of_other_options_pass(program: str) -> None:
    owned = {"llama_server": llamacpp.OWNED_FLAGS}.get(program) or ENGINES[program][1]
    known = table(program, abbreviations=program != "llama_server")
    own = {known.by_name[canonical(name)] for name in owned if canonical(name) in known.by_name}
    for option in known.options:
        for name in option.names:
            assert bool(list(refused([name, f"{name}=1"], known, owned))) is (option in own), name


@pytest.mark.parametrize("program", LISTS)
def test_every_owned_name_is_in_the_list(program: str) -> None:
    owned = {"llama_server": llamacpp.OWNED_FLAGS}.get(program) or ENGINES[program][1]
    assert {canonical(name) for name in owned} <= set(table(program).by_name)


REFUSED = {
    "vllm": [
        *("--port", "--port=1", "--por", "--tensor-parallel", "--tensor_parallel_size=2", "-tp", "-tp=2", "-t", "-n2"),
        *("-r1", "-q", "-qfp8", "--no-enable-expert-parallel", "-ep", "--api-key=x", "--api_k", "--served", "--head"),
        *(
            "--device-mem",
            "--data-parallel-rpc-port",
            "-dpl",
            "--distributed-executor",
            "--config",
            "--conf",
            "--ssl-key",
        ),
        *("--kv-cache-dtype=fp8", "--uds", "--hos", "--max-model", "--gpu-memory-util"),
    ],
    "sglang": [
        *("--tp", "--tp-size", "--tensor-parallel-size=2", "--tensor_parallel", "--ep", "--nccl-init-addr", "--nccl-p"),
        *("--model", "--model-p", "--api-k", "--context-len", "--dist-init", "--enable-metrics", "--mem-frac"),
    ],
    "llamacpp": ["-m", "--model", "-c", "--ctx_size", "-np", "-a", "--api-key-file", "-hf", "--models-dir", "--port"],
}
PASSED = {
    "vllm": [
        *("--model-impl=auto", "--max-num-seqs", "8", "--enable-prefix-caching", "--no-enable-prefix-caching", "-cc"),
        *("--chat-template", "-1", "--hf-overrides.rope_theta=1", "--api-server-count=2", "value", "-x y", "-"),
        *("--data-parallel-not-yet-known", "--unknown"),
    ],
    "sglang": ["--model-impl", "--tp-comm", "--enable-metrics-for-all-schedulers", "--attn-dp-size=2", "--log-level"],
    "llamacpp": ["-ngl", "99", "--mo", "--por", "--port=1x", "-fa", "on", "--flash_attn", "-md", "draft.gguf"],
}


def launch(engine: str, arguments: list[str], **fields: Any) -> Any:
    profile = parse_profile({"engine": engine, "model": "m", "extra_args": arguments, **fields})
    return plan(LaunchSpec(replica="m/1", served_names=("m",), profile=profile, port=20_000))


@pytest.mark.parametrize(("engine", "word"), [(engine, word) for engine, words_ in REFUSED.items() for word in words_])
def test_words_that_reach_what_llmgw_sets_are_refused_by_name(engine: str, word: str) -> None:
    with pytest.raises(PlanError, match="llmgw sets itself") as error:
        launch(engine, [word])
    assert error.value.problems[0].hint


@pytest.mark.parametrize("engine", PASSED)
def test_other_words_pass_as_they_are(engine: str) -> None:
    words_ = [word for word in PASSED[engine] if not (engine == "llamacpp" and word == "--port=1x")]
    for word in words_:
        assert launch(engine, [word]).argv[-1] == word


def test_llama_server_takes_no_prefix_and_no_equals_sign_but_ours_are_refused_all_the_same() -> None:
    with pytest.raises(PlanError, match="reaches --port"):
        launch("llamacpp", ["--port=1"])


def test_the_hint_names_the_profiles_own_field() -> None:
    known = table("vllm")
    (problem,) = refused(["--tensor-par=2"], known, vllm.OWNED_FLAGS)
    assert (
        problem.text
        == "cannot use --tensor-par in extra_args: it reaches --tensor-parallel-size, which llmgw sets itself"
    )
    assert problem.hint == "use the profile's own field `tensor_parallel`"
    (other,) = refused(["--uds", "/x"], known, vllm.OWNED_FLAGS)
    assert "no field for it" in other.hint


def test_a_name_that_the_list_lacks_is_owned_too() -> None:
    known = OptionTable(program="other", options=(), by_name={})
    assert [p.code for p in refused(["--port=1", "--po", "--x"], known, ["--port"])] == ["flag_owned", "flag_owned"]


@pytest.mark.parametrize("variable", ["LLAMA_ARG_API_PREFIX", "LLAMA_ARG_MODELS_DIR"])
def test_what_llama_server_reads_from_the_environment_is_refused_too(variable: str) -> None:
    with pytest.raises(PlanError, match=variable):
        launch("llamacpp", [], env={variable: "x"})


JSON_WRONG = [
    (
        "vllm",
        ["--hf-overrides", "{bad json"],
        "cannot use --hf-overrides '{bad json' in extra_args: its value must be JSON",
    ),
    ("vllm", ["--hf_overrides={'a': 1}"], "cannot use --hf_overrides"),
    ("vllm", ["-cc", "{mode: 3}"], "cannot use -cc"),
    ("vllm", ["--speculative-conf", "x"], "cannot use --speculative-conf x"),
    ("vllm", ["--limit-mm-per-prompt", "image=4"], "cannot use --limit-mm-per-prompt image=4"),
    ("vllm", ["--hf-overrides", "[" * 100_000], "it is nested too deep"),
    ("sglang", ["--json-model-override-args", "{"], "cannot use --json-model-override-args '{'"),
    ("sglang", ["--forward-hooks", "a"], "cannot use --forward-hooks a"),
    ("llamacpp", ["--chat-template-kwargs", "{a: 1}"], "cannot use --chat-template-kwargs '{a: 1}'"),
]
JSON_RIGHT = [
    (
        "vllm",
        ["--hf-overrides", '{"a": 1}', "-cc", "3", "--kv-transfer-config=null", "--hf-overrides.rope.factor", "x"],
    ),
    ("vllm", ["--speculative-config", "None", "--pt-load-map-location", "cpu", "--chat-template", "{bad json"]),
    ("sglang", ["--model-loader-extra-config", "{}", "--preferred-sampling-params", '{"top_p": 1}']),
    ("llamacpp", ["--json-schema", '{"type": "object"}']),
]


@pytest.mark.parametrize(("engine", "words", "text"), JSON_WRONG, ids=[row[2][:40] for row in JSON_WRONG])
def test_a_value_that_must_be_json_is_refused_where_it_is_none(engine: str, words: list[str], text: str) -> None:
    with pytest.raises(PlanError) as caught:
        launch(engine, words)
    (problem,) = caught.value.problems
    assert text in problem.text
    assert problem.hint.startswith("such as: [")


@pytest.mark.parametrize(("engine", "words"), JSON_RIGHT)
def test_json_and_what_need_not_be_json_passes(engine: str, words: list[str]) -> None:
    assert list(launch(engine, words).argv[-len(words) :]) == words


def test_the_lists_mark_as_json_what_the_engines_own_parsers_read_so() -> None:
    for program, rows in (("vllm", VLLM), ("sglang", SGLANG)):
        for row in rows:
            if row.get("type") in ("loads", "json_list_type", "parse_dataclass"):
                assert table(program).by_name[row["names"][0]].json, row["names"]
