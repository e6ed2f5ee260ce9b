"""A model's folder as transformers writes it: config.json, weights with or without an index, a tokenizer."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agent_client.model_files.findings import LFS_POINTER, POINTER_BYTES, Findings, Model
from agent_client.model_files.listing import Listed, parts
from agent_client.profile import safetensors
from agent_client.profile.config_json import facts_of_config
from agent_client.profile.model_facts import (
    MOST_CONFIG_BYTES,
    MOST_INDEX_BYTES,
    FactsError,
    ModelFacts,
    read_index,
    read_json,
)

_CONFIG, _QUANTIZATION = "config.json", "hf_quant_config.json"
_MISTRAL_CONFIG = "params.json"  # Mistral's own form, which vLLM reads too
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_OLD_WEIGHTS = (".bin", ".pt", ".pth")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "scheduler.pt")
_TOKENIZERS = ("tokenizer", "vocab", "tekken", "merges", "spiece", "sentencepiece")
_TOKENIZER_ENDS = (".tiktoken", ".model", ".spm")


def read(path: Path, files: Mapping[str, Listed]) -> Model:
    found = Findings(path)
    if not files:
        found.note("model_incomplete", "the folder is empty", "copy the model there, or name another path")
        return found.model()
    reader = _Reader(path, files, found)
    config = reader.json(_CONFIG, MOST_CONFIG_BYTES)
    if config is None and _CONFIG not in files and _MISTRAL_CONFIG not in files:
        found.note("config_missing", "there is no config.json in it", _where_else(files))
        return found.model()
    size = reader.weights()
    if not any(_is_tokenizer(name) for name in files):
        text = "there is no tokenizer in it (tokenizer.json, tokenizer.model, vocab.json, …)"
        found.note("tokenizer_missing", text, "copy the model's tokenizer files there")
    if config is None:
        return found.model(ModelFacts(weights_bytes=size))
    quantization = reader.json(_QUANTIZATION, MOST_CONFIG_BYTES)
    return found.model(facts_of_config(config, quantization_file=quantization, weights_bytes=size))


class _Reader:
    def __init__(self, path: Path, files: Mapping[str, Listed], found: Findings) -> None:
        self._path, self._files, self._found = path, files, found

    def json(self, name: str, most_bytes: int) -> Mapping[str, Any] | None:
        """None where there is none, or where it can't be read, which is noted."""
        data = self._bytes(name, most_bytes)
        if data is None:
            return None
        try:
            return read_json(data, name, most_bytes=most_bytes)
        except FactsError as error:
            self._broken(name, data, error)
            return None

    def weights(self) -> int | None:
        """Bytes of all tensors, where each file is there and whole."""
        names = self._named()
        if not names:
            return None
        missing = [name for name in names if self._files.get(name) is None]
        if missing:
            listed = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
            text = f"{len(missing)} of {len(names)} weight files are not there: {listed}"
            self._found.note("weights_incomplete", text, "copy them there, or wait until the copy is done")
        sizes = [self._weight_bytes(name) for name in names if name not in missing]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(names) else None

    def _named(self) -> tuple[str, ...]:
        """The weight files that there must be; () where it can't be said, which is noted."""
        for index in _INDEXES:
            if index in self._files:
                data = self._bytes(index, MOST_INDEX_BYTES)
                try:
                    return () if data is None else read_index(data, index).files
                except FactsError as error:
                    self._broken(index, data or b"", error)
                    return ()
        names = [name for name in self._files if "/" not in name]
        there = [name for name in names if name.endswith(".safetensors")]
        there = there or [name for name in names if name.endswith(_OLD_WEIGHTS) and name not in _NOT_WEIGHTS]
        if not there:
            self._found.note("weights_incomplete", "there are no weights in it", _where_else(self._files))
        return tuple(dict.fromkeys(part for name in there for part in (parts(name) or (name,))))

    def _weight_bytes(self, name: str) -> int | None:
        listed = self._files[name]
        assert listed is not None
        size = listed[0]
        try:
            with (self._path / name).open("rb") as file:
                start = file.read(POINTER_BYTES if size <= POINTER_BYTES else safetensors.LENGTH_BYTES)
                if start.startswith(LFS_POINTER):
                    self._found.is_pointer(name)
                    return None
                if not name.endswith(".safetensors"):
                    return self._some(name, size)
                length = safetensors.header_bytes(start)
                file.seek(safetensors.LENGTH_BYTES)
                header = file.read(length)
        except OSError as error:
            self._found.cannot_read(name, error)
            return None
        except FactsError as error:
            self._found.note("weights_incomplete", f"{name} can't be used: {error}", "copy it again")
            return None
        if len(header) < length:
            self._found.too_short(name, size, safetensors.LENGTH_BYTES + length)
            return None
        return self._checked(name, size, header)

    def _checked(self, name: str, size: int, header: bytes) -> int | None:
        try:
            needed = safetensors.file_bytes(header)
        except FactsError as error:
            self._found.note("weights_incomplete", f"{name} can't be used: {error}", "copy it again")
            return None
        if size < needed:
            self._found.too_short(name, size, needed)
            return None
        if size > needed:
            text = f"{name} has {size} bytes, {size - needed} more than its header says"
            self._found.note("weights_incomplete", text, "copy it again")
            return None
        return size - safetensors.LENGTH_BYTES - len(header)

    def _some(self, name: str, size: int) -> int | None:
        if size:
            return size
        self._found.note("weights_incomplete", f"{name} is empty", "copy it again")
        return None

    def _bytes(self, name: str, most_bytes: int) -> bytes | None:
        if name not in self._files:
            return None
        try:
            with (self._path / name).open("rb") as file:
                return file.read(most_bytes + 1)
        except OSError as error:
            self._found.cannot_read(name, error)
            return None

    def _broken(self, name: str, data: bytes, error: FactsError) -> None:
        if data.startswith(LFS_POINTER):
            self._found.is_pointer(name)
        else:
            reason = str(error).partition(": ")[2]
            self._found.note("model_unreadable", f"{name} can't be used: {reason}", "copy it again")


def _is_tokenizer(name: str) -> bool:
    return name.startswith(_TOKENIZERS) or name.endswith(_TOKENIZER_ENDS)


def _where_else(names: Iterable[str]) -> str:
    """For a folder that is not the model's, but has one inside."""
    inside = sorted({name.rpartition("/")[0] for name in names if name.endswith("/" + _CONFIG)})
    if inside:
        return f"name the folder inside it: {inside[0]}"
    single = sorted(name for name in names if name.endswith(".gguf"))
    if single:
        return f"name the file itself, with engine: llamacpp: {single[0]}"
    return "name the folder with the model's config.json and weights"
