"""What was found in a model's files, collected while they are read."""

from dataclasses import dataclass
from pathlib import Path

from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.problems import Problem

LFS_POINTER = b"version https://git-lfs"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
POINTER_BYTES = 1024  # a pointer has some 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    facts: ModelFacts
    problems: tuple[Problem, ...] = ()


class Findings:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: list[Problem] = []

    def note(self, code: str, text: str, hint: str) -> None:
        self._problems.append(
            Problem(code=code, field="profile.model", text=f"cannot run {self._path}: {text}", hint=hint)
        )

    def cannot_read(self, name: str, error: OSError) -> None:
        text = f"{name} can't be read ({error.strerror or type(error).__name__})"
        self.note("model_unreadable", text, "the agent's user must be able to read the model")

    def is_pointer(self, name: str) -> None:
        text = f"{name} is a Git LFS pointer, the file itself was not fetched"
        code = "weights_incomplete" if name.endswith(_WEIGHTS) else "model_incomplete"
        self.note(code, text, "run `git lfs pull` where it was cloned")

    def too_short(self, name: str, size: int, needed: int) -> None:
        text = f"{name} has {shown(size)}, its header says {shown(needed)}: it was cut off"
        self.note("weights_incomplete", text, "copy it again, or wait until the copy is done")

    def model(self, facts: ModelFacts | None = None) -> Model:
        return Model(facts=facts or ModelFacts(), problems=tuple(self._problems))


def shown(size: int) -> str:
    return f"{size} bytes" if size < 10_000_000 else f"{size / 1e9:.2f} GB"
