"""A model's own files, read as data: what they say of the model, and whether all of them are there and whole.

Nothing of a model is run, no weight is read, and every read has a largest size. Results are kept by content: names,
sizes and times of change.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from agent_client.model_files import folder, gguf_file
from agent_client.model_files.findings import Findings, Model
from agent_client.model_files.listing import Listed, list_files

LIMIT_SECONDS = 5.0  # a cold network file system may take seconds for 160 headers; a hung one takes for ever
_KEPT = 64

_models: "OrderedDict[Path, tuple[Mapping[str, Listed], Model]]" = OrderedDict()
_readers: dict[Path, threading.Thread] = {}
_lock = threading.Lock()


def read_model(path: Path, *, limit_seconds: float = LIMIT_SECONDS) -> Model:
    """What stands against the files is in `problems`. A file system that does not answer in time is one too.

    While one read of a path hangs, no second one is started.
    """
    done: list[Model] = []
    with _lock:
        reader = _readers.get(path)
        if reader is None or not reader.is_alive():
            reader = threading.Thread(target=lambda: done.append(_read(path)), name="model files", daemon=True)
            _readers[path] = reader
            reader.start()
    reader.join(limit_seconds)
    with _lock:
        if not reader.is_alive() and _readers.get(path) is reader:
            del _readers[path]
    if done:
        return done[0]
    if not reader.is_alive():  # somebody else's, which kept what it found
        return _read(path)
    found = Findings(path)
    text = f"its files could not be read within {limit_seconds:g} s"
    found.note("model_unreadable", text, "see whether the file system still answers")
    return found.model()


def _read(path: Path) -> Model:
    try:
        files = list_files(path)
    except OSError as error:
        found = Findings(path)
        found.cannot_read(path.name, error)
        return found.model()
    with _lock:
        kept = _models.get(path)
        if kept is not None and kept[0] == files:
            _models.move_to_end(path)
            return kept[1]
    model = (folder if os.path.isdir(path) else gguf_file).read(path, files)
    with _lock:
        _models[path] = (files, model)
        while len(_models) > _KEPT:
            _models.popitem(last=False)
    return model


__all__ = ["LIMIT_SECONDS", "Model", "read_model"]
