"""The 27 models' numbers as their config.json would give them."""

import json
from pathlib import Path
from typing import Any

from agent_client.profile import parse_profile
from agent_client.profile.config_json import facts_of_config
from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.subject import Card, Subject

_FILE = Path(__file__).parents[1] / "engines" / "data" / "model_configs.json"
MODELS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(_FILE.read_text())["models"]}

H100 = Card(name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory_total_mib=81_559)
T4 = Card(name="Tesla T4", capability=(7, 5), memory_total_mib=15_360)


def config_of(name: str) -> dict[str, Any]:
    """The counts of layer types stand for the list that the real file has."""

    def expanded(config: dict[str, Any]) -> dict[str, Any]:
        out = {key: expanded(value) if key == "text_config" else value for key, value in config.items()}
        counts = out.pop("layer_types_count", None)
        if counts:
            out["layer_types"] = [kind for kind, count in counts.items() for _ in range(count)]
        return out

    return expanded(MODELS[name]["config"])


def facts_of(name: str, *, with_files: bool = True) -> ModelFacts:
    row = MODELS[name]
    file = None
    if "quantization" in row:  # "…, in hf_quant_config.json: {…}"
        file = {"quantization": json.loads(row["quantization"].split(": ", 1)[1])}
    size = row["tensor_bytes"] if with_files else None
    return facts_of_config(config_of(name), quantization_file=file, weights_bytes=size)


def subject(name: str, *cards: Card, engine: str = "vllm", **fields: Any) -> Subject:
    given = {key: fields.pop(key) for key in ("engine_version", "served_names", "shm_free_mib") if key in fields}
    profile = parse_profile({"engine": engine, "model": name, **fields})
    return Subject(profile=profile, facts=facts_of(name), cards=cards, **given)
