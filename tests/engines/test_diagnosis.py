"""The recorded failures: right code and right line, whatever noise follows; and a sample line for every row."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_client.engines.causes import CAUSES
from agent_client.engines.diagnosis import CAUSE, UNKNOWN, Diagnosis, ExitCause, diagnose, exception_line

DATA = Path(__file__).parent / "data" / "failures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())

#: What engines write while they go down: exceptions of their own among it, none of them the cause.
NOISE = (
    "(APIServer pid=1) ERROR 12-01 06:13:41 [core_client.py:700] Engine core proc EngineCore died unexpectedly.",
    '(APIServer pid=1)   File "/opt/vllm/lib/python3.11/site-packages/vllm/v1/engine/utils.py", line 1431, in wait',
    "(APIServer pid=1)     raise RuntimeError(",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).",
    "asyncio.exceptions.CancelledError",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "[rank0]:[W1201 06:13:41 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
    "resource_tracker: There appear to be 1 leaked shared_memory objects to clean up at shutdown",
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "(Worker_TP1 pid=3) INFO 12-01 06:13:42 [multiproc_executor.py:712] Parent process exited, terminating worker",
    "RuntimeError: Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG",
    "Exit code: -9",
    "",
)


def recorded(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def test_there_are_at_least_thirty_causes() -> None:
    assert len({row.code for row in CAUSES}) >= 30
    assert all(row.says and row.hint for row in CAUSES)
    assert len(EXPECTED) == 36


@pytest.mark.parametrize("noise", [0, 200], ids=["bare", "with 200 lines of noise"])
@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_failure_is_told_by_code_line_and_sentence(name: str, noise: int) -> None:
    row = EXPECTED[name]
    lines = [*recorded(name), *(NOISE[i % len(NOISE)] for i in range(noise))]
    found = diagnose(lines, ExitCause(code=row.get("exit_code")))
    assert (found.code, found.line) == (row["code"], row["line"].strip())
    assert row["must_contain"] in found.line
    assert "{" not in found.sentence
    assert found.hint


SENTENCES = {
    "03-vllm-heads-not-divisible.txt": "28 attention heads do not divide by tensor_parallel 8",
    "04-vllm-context-exceeds-model.txt": "max_model_len 1000000 is above the model's (max_position_embeddings=2048.0)",
    "13-vllm-shm-too-small.txt": "the shared memory /dev/shm is too small: 160 MiB needed, 1 MiB free",
    "16-vllm-cuda-oom-serving.txt": "GPU 0 ran out of memory: 50.00 MiB wanted, 21.75 MiB of 23.56 GiB free",
    "18-vllm-context-exceeds-cache.txt": "one request of max_model_len 262144 needs 24.0 GiB of KV cache, 3.18 GiB are "
    "there",
    "19-vllm-gpu-memory-taken.txt": "only 7.34 of 139.72 GiB are free on the GPU, gpu_memory_utilization 0.9 needs "
    "125.75 GiB",
    "20-vllm-dtype-unsupported.txt": "bfloat16 needs compute capability 8.0, Tesla T4 has 7.5",
    "32-llama-unknown-flag.txt": "the installed engine does not know --ctxsize",
    "35-vllm-master-port-in-use.txt": "port 29555 is in use",
    "36-vllm-vocabulary-not-divisible.txt": "the vocabulary padded to 320 does not divide by tensor_parallel 3",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentence_carries_the_numbers(name: str) -> None:
    assert diagnose(recorded(name)).sentence == SENTENCES[name]


#: Wordings that the recorded outputs do not contain.
LINES: dict[str, str] = {row["line"]: row["code"] for row in json.loads((DATA.parent / "wordings.json").read_text())}


#: Not causes but consequences: the noise says the same.
SAY_ONLY_WHO_DIED = {row.code for row in CAUSES if row.rank > CAUSE}


@pytest.mark.parametrize("line", LINES)
def test_other_wordings_are_known(line: str) -> None:
    assert diagnose([line]).code == LINES[line]


@pytest.mark.parametrize("line", [line for line in LINES if diagnose([line]).code not in SAY_ONLY_WHO_DIED])
def test_every_cause_outlasts_two_hundred_lines_of_noise(line: str) -> None:
    noise = [NOISE[i % len(NOISE)] for i in range(200)]
    assert diagnose([line, *noise], ExitCause(code=1)) == diagnose([line])


@pytest.mark.parametrize("name", EXPECTED)
def test_the_sentence_is_the_same_with_noise(name: str) -> None:
    noise = [NOISE[i % len(NOISE)] for i in range(200)]
    assert diagnose([*recorded(name), *noise]).sentence == diagnose(recorded(name)).sentence


def test_every_row_of_the_table_is_tried() -> None:
    tried = {row["code"] for row in EXPECTED.values()} | set(LINES.values())
    assert {row.code for row in CAUSES} == tried


def test_a_harmless_warning_about_open_files_is_no_cause() -> None:
    warning = next(line for line in recorded("15-vllm-nodes-not-divisible.txt") if "ulimit" in line)
    assert diagnose([warning, "ValueError: something else"]).code == UNKNOWN


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (ExitCause(signal=9), "killed"),
        (ExitCause(signal=9, oom_killed=True), "killed-oom"),
        (ExitCause(signal=11), "segfault"),
        (ExitCause(signal=4), "illegal-instruction"),
        (ExitCause(signal=7), "bus-error"),
        (ExitCause(code=3), UNKNOWN),
    ],
)
def test_the_way_it_ended_speaks_where_the_output_does_not(ended: ExitCause, code: str) -> None:
    found = diagnose(["loading", "Loading safetensors checkpoint shards: 10% Completed | 1/10"], ended)
    assert found.code == code
    assert found.sentence


def test_an_unknown_failure_shows_the_first_exception_of_a_worker() -> None:
    lines = [
        "Traceback (most recent call last):",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
        "(Worker_TP1 pid=3) ERROR 12-01 06:13:41 [core.py:1] ZeroDivisionError: integer modulo by zero",
        "KeyError: 'later'",
    ]
    assert exception_line(lines) == lines[2]
    assert diagnose(lines).sentence == "ZeroDivisionError: integer modulo by zero"
    assert diagnose([]) == Diagnosis(
        code=UNKNOWN, line="", sentence="it ended, and how is not known: an earlier agent had started it"
    )


def test_what_an_engine_wrote_before_it_served_does_not_explain_its_end() -> None:
    early = ["OSError: [Errno 98] Address already in use", "trying the next port"]
    served = "(APIServer pid=1) INFO 12-01 06:13:41 [loggers.py:1] Engine 000: Avg prompt throughput: 12.0 tokens/s"
    late = recorded("16-vllm-cuda-oom-serving.txt")
    assert diagnose([*early, served, *late]).code == "cuda-oom"
    assert diagnose([*late, served, "goodbye"]).code == "cuda-oom"
    assert diagnose([*early, served, "ZeroDivisionError: division by zero"]).code == "port-in-use"


def test_an_unknown_refusal_of_the_configuration_shows_its_message() -> None:
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
        "  Value error, the moon is in the wrong house [type=value_error, input_value=ArgsKwargs((), {})]",
        "    For further information visit https://errors.example.com/2.12/v/value_error",
    ]
    assert diagnose(lines, ExitCause(code=1)).line == lines[1].strip()


def test_a_core_that_was_killed_is_told_though_its_api_process_ends_with_exit_code_0() -> None:
    lines = (DATA.parent / "vllm-core-killed.txt").read_text(encoding="utf-8").splitlines()
    found = diagnose(lines, ExitCause(code=0))
    assert found.code == "engine-process-died"
    assert "engine core exited unexpectedly" in found.line
