"""YAML that people wrote: bounds, and where it is wrong."""

import pytest

from agent_client.yaml_text import UnreadableYaml, read_yaml

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
REFUSED = [
    ("a: 1\nb: [1, 2\nc: 3", "line 3, column 2: "),
    ("engine: echo: 1", "line 1, column 13: mapping values are not allowed here"),
    ("tensor_parallel: 2\nmodel: m\ntensor_parallel: 4", "line 3, column 1: `tensor_parallel` stands there twice"),
    ('{"a": 1, "a": 2}', "line 1, column 10: `a` stands there twice"),
    ("[" * 20_000, "line 1, column 51: it is nested more than 50 deep"),
    ("&a [*a]", "it holds itself"),
    (BOMB, "it stands for more than 200,000 values"),
    ("a: 2001-99-99", "month must be in 1..12"),
    ("a: " + "9" * 5000, "Exceeds the limit"),
    ("a: !!python/object:os.system {}", "could not determine a constructor"),
    ("a\x00b", "character 2 is not allowed in YAML"),
    (b"\xff", "byte 1 is not UTF-8"),
    ("a: 1\n---\nb: 2", "line 2, column 1: but found another document"),
    ("a: !!bool x", "line 1, column 4: it is no bool"),
    ("a: !!int ''", "line 1, column 4: it is no int"),
    ("a:\n  - !!float ''", "line 2, column 5: it is no float"),
    ("!!timestamp x", "it is no timestamp"),
    ("a: 0x" + "f" * 6000, "a is a number that does not fit 64 bits"),
    ('"\\ud800"', "it holds NUL or half of a surrogate pair"),
    ('a: ["x\\0"]', "a holds NUL or half of a surrogate pair"),
    ('{"\\udfff": 1}', "a key of it holds NUL or half of a surrogate pair"),
    ("a: 99999999999999999999", "a is a number that does not fit 64 bits"),
    ("a: .inf", "a is not a finite number"),
    ("a: .nan", "a is not a finite number"),
    ("x" * 1_000_001, "it has 1,000,001 bytes; 1,000,000 are allowed"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_is_said_with_its_place(text: str | bytes, said: str) -> None:
    with pytest.raises(UnreadableYaml) as error:
        read_yaml(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_people_write_is_read() -> None:
    assert read_yaml('{"engine": "echo", "gpus": 0}') == {"engine": "echo", "gpus": 0}
    assert read_yaml("base: &b {engine: vllm}\none: {<<: *b, model: m}")["one"] == {"engine": "vllm", "model": "m"}
    assert read_yaml("<<: {a: 1}\na: 2") == {"a": 2}
    assert read_yaml("") is None
