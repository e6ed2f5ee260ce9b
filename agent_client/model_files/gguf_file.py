"""A model in one GGUF file, or in several that llama.cpp finds by the first one's name."""

from collections.abc import Mapping
from pathlib import Path

from agent_client.model_files.findings import LFS_POINTER, Findings, Model
from agent_client.model_files.listing import Listed, parts
from agent_client.profile.gguf import MOST_HEADER_BYTES, GgufHeader, HeaderCutOff, facts_of_gguf, read_header
from agent_client.profile.model_facts import FactsError, whole

_FIRST_READ = 16 * 1024 * 1024  # nearly all headers


def read(path: Path, files: Mapping[str, Listed]) -> Model:
    found = Findings(path)
    header = _header(path, found)
    if header is None:
        return found.model()
    count = whole(header.values.get("split.count")) or 1
    names = parts(path.name) if count > 1 else (path.name,)
    if len(names) != count:
        text = f"it is part of {count}, and its name does not say so"
        hint = "name it NAME-00001-of-0000N.gguf, as llama.cpp does"
        found.note("weights_incomplete", text, hint)
        return found.model(facts_of_gguf(header))
    if path.name != names[0]:
        found.note("weights_incomplete", f"it is not the first of {count} parts", f"name {names[0]}")
    missing = [name for name in names if files.get(name) is None]
    if missing:
        text = f"{len(missing)} of {count} parts are not there: {', '.join(missing[:3])}"
        found.note("weights_incomplete", text, "copy them there")
        return found.model(facts_of_gguf(header))
    headers = [header if name == path.name else _header(path.with_name(name), found) for name in names]
    known = [part.tensor_bytes for part in headers if part is not None and part.tensor_bytes is not None]
    return found.model(facts_of_gguf(header, weights_bytes=sum(known) if len(known) == count else None))


def _header(path: Path, found: Findings) -> GgufHeader | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            data = file.read(_FIRST_READ)
            try:
                header = read_header(data)
            except HeaderCutOff:
                header = read_header(data + file.read(MOST_HEADER_BYTES - len(data)))
    except OSError as error:
        found.cannot_read(path.name, error)
        return None
    except HeaderCutOff:
        text = f"{path.name} has {size} bytes, its header goes on after them"
        found.note("weights_incomplete", text, "copy it again, or wait until the copy is done")
        return None
    except FactsError as error:
        if data.startswith(LFS_POINTER):
            found.is_pointer(path.name)
        else:
            reason = str(error).partition(": ")[2]
            found.note("model_unreadable", f"{path.name} is no GGUF file: {reason}", "name the model's folder or .gguf")
        return None
    if header.file_bytes is not None and size < header.file_bytes:
        found.too_short(path.name, size, header.file_bytes)
    return header
