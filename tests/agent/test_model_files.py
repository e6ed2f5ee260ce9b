"""Models as they lie on disk: whole, half copied, never fetched, or no models at all."""

import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from agent_client.model_files import Model, read_model
from tests.support import tiny_gguf, tiny_hf

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4995584424\n"


def safetensors(path: Path, tensor_bytes: int) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [tensor_bytes // 4], "data_offsets": [0, tensor_bytes]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(tensor_bytes))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    tiny_hf.write(folder)
    return folder


@pytest.fixture
def sharded(tiny: Path) -> Path:
    """Three files of 4,000 bytes in place of one."""
    (tiny / "model.safetensors").unlink()
    names = [f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)]
    for name in names:
        safetensors(tiny / name, 4000)
    index = {"metadata": {"total_size": 12_000}, "weight_map": {f"w{n}": name for n, name in enumerate(names)}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    return tiny


def codes(model: Model) -> list[str]:
    return [problem.code for problem in model.problems]


def check(path: Path, code: str, text: str) -> None:
    (problem,) = read_model(path).problems
    assert problem.code == code
    assert problem.text.startswith(f"cannot run {path}: ")
    assert text in problem.text
    assert problem.hint


def test_a_whole_model_gives_its_facts_and_no_problem(tiny: Path, sharded: Path) -> None:
    model = read_model(sharded)
    assert model.problems == ()
    assert (model.facts.layers, model.facts.heads, model.facts.kv_heads) == (tiny_hf.L, tiny_hf.H, tiny_hf.K)
    assert model.facts.weights_bytes == 12_000


def test_one_file_without_an_index(tiny: Path) -> None:
    model = read_model(tiny)
    assert model.problems == ()
    size = (tiny / "model.safetensors").stat().st_size
    assert model.facts.weights_bytes is not None
    assert size - 10_000 < model.facts.weights_bytes < size


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 100)


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def holding(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


def dangling(name: str) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("../../blobs/0123")

    return act


SECOND, INDEX = "model-00002-of-00003.safetensors", "model.safetensors.index.json"
WRONG: list[tuple[Callable[[Path], Any], str, str]] = [
    (gone(SECOND), "weights_incomplete", f"1 of 3 weight files are not there: {SECOND}"),
    (dangling(SECOND), "weights_incomplete", f"1 of 3 weight files are not there: {SECOND}"),  # a cache's snapshot
    (cut(SECOND), "weights_incomplete", f"{SECOND} has 3975 bytes, its header says 4075 bytes: it was cut off"),
    (holding(SECOND, "x"), "weights_incomplete", f"{SECOND} can't be used: it has 1 bytes"),
    (holding(SECOND, "<html>not found</html>"), "weights_incomplete", "it is no safetensors file"),
    (holding(SECOND, POINTER), "weights_incomplete", f"{SECOND} is a Git LFS pointer"),
    (holding(INDEX, POINTER), "model_incomplete", f"{INDEX} is a Git LFS pointer"),
    (holding(INDEX, "{"), "model_unreadable", f"{INDEX} can't be used: it is not valid JSON"),
    (holding(INDEX, '{"weight_map": {"a": "../../etc/passwd"}}'), "model_unreadable", "no file of the model's folder"),
    (gone("config.json"), "config_missing", "there is no config.json in it"),
    (holding("config.json", ""), "model_unreadable", "config.json can't be used: it is not valid JSON"),
    (holding("config.json", "[]"), "model_unreadable", "it holds list"),
    (holding("config.json", " " * 9_000_000), "model_unreadable", "8388608 at most are read"),
    (holding("config.json", POINTER), "model_incomplete", "config.json is a Git LFS pointer"),
]


@pytest.mark.parametrize(("damage", "code", "text"), WRONG, ids=[text[:40] for _, _, text in WRONG])
def test_what_is_missing_or_broken_is_named_with_the_numbers(
    sharded: Path, damage: Callable[[Path], Any], code: str, text: str
) -> None:
    damage(sharded)
    check(sharded, code, text)


def test_a_file_with_more_than_its_header_says_is_told(sharded: Path) -> None:
    with (sharded / SECOND).open("ab") as file:
        file.write(b"twice")
    check(sharded, "weights_incomplete", "5 more than its header says")


def test_shards_without_an_index_are_counted_by_their_names(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert read_model(sharded).problems == ()
    (sharded / SECOND).unlink()
    check(sharded, "weights_incomplete", "1 of 3 weight files are not there")


def test_a_folder_without_weights_or_tokenizer(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    check(tiny, "weights_incomplete", "there are no weights in it")
    (tiny / "pytorch_model.bin").write_bytes(b"x" * 50)
    assert read_model(tiny).facts.weights_bytes == 50
    for file in tiny.glob("tokenizer*"):
        file.unlink()
    check(tiny, "tokenizer_missing", "there is no tokenizer in it")


def test_a_folder_around_the_model_names_the_one_inside(tiny: Path) -> None:
    (problem,) = read_model(tiny.parent).problems
    assert problem.hint == "name the folder inside it: tiny"


def test_an_empty_folder_a_missing_one_and_a_file_that_is_no_model(tmp_path: Path) -> None:
    check(tmp_path, "model_incomplete", "the folder is empty")
    check(tmp_path / "no", "model_unreadable", "No such file or directory")
    (tmp_path / "x.gguf").write_text("<html>")
    check(tmp_path / "x.gguf", "model_unreadable", "it does not begin with GGUF")
    (tmp_path / "y.gguf").write_text(POINTER)
    check(tmp_path / "y.gguf", "weights_incomplete", "y.gguf is a Git LFS pointer")


def test_a_change_on_disk_is_seen_and_an_unchanged_model_is_not_read_again(sharded: Path) -> None:
    first = read_model(sharded)
    assert read_model(sharded) is first
    cut(SECOND)(sharded)
    assert codes(read_model(sharded)) == ["weights_incomplete"]
    safetensors(sharded / SECOND, 4000)
    assert read_model(sharded).problems == ()


def test_a_file_system_that_does_not_answer_is_waited_for_in_vain_once(tmp_path: Path) -> None:
    """A named pipe without a writer: opening it blocks, as a hung mount does."""
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "tokenizer.json")
    before = threading.active_count()
    for _ in range(3):
        (problem,) = read_model(tmp_path, limit_seconds=0.05).problems
        assert "within 0.05 s" in problem.text
    assert threading.active_count() == before + 1
    with (tmp_path / "model.safetensors").open("wb"):  # it answers again
        pass


# --- GGUF ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"m-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_block_count(2)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_tensor(f"blk.{number}.w", np.zeros((8, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_gguf_file_whole_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(str(path))
    model = read_model(path)
    assert model.problems == ()
    assert model.facts.heads == tiny_gguf.H
    size = path.stat().st_size
    os.truncate(path, size - 1)
    check(path, "weights_incomplete", f"has {size - 1} bytes, its header says {size} bytes: it was cut off")
    os.truncate(path, 200)
    check(path, "weights_incomplete", "has 200 bytes, its header goes on after them")


def test_a_gguf_in_parts(parts: list[Path]) -> None:
    model = read_model(parts[0])
    assert model.problems == ()
    assert model.facts.weights_bytes == 3 * 8 * 32 * 4
    check(parts[1], "weights_incomplete", "it is not the first of 3 parts")
    os.truncate(parts[2], parts[2].stat().st_size - 50)
    check(parts[0], "weights_incomplete", f"{parts[2].name} has")
    parts[2].unlink()
    check(parts[0], "weights_incomplete", f"1 of 3 parts are not there: {parts[2].name}")
    other = parts[0].rename(parts[0].with_name("renamed.gguf"))
    check(other, "weights_incomplete", "its name does not say so")
