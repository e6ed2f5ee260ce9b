"""Form fields for what a catalog file holds: people may paste its YAML, or JSON, which is YAML, too."""

import json
from typing import Any

from django import forms

from agent_client.profile import UnreadableYaml, read_yaml

MOST_BYTES = 64 * 1024


class YamlField(forms.JSONField):
    """Shown as indented JSON; nothing where there is nothing. What was typed stays as it was typed."""

    def to_python(self, value: Any) -> Any:
        if self.disabled or not isinstance(value, str):
            return value
        try:
            found = read_yaml(value, most_bytes=MOST_BYTES)
            json.dumps(found)
        except UnreadableYaml as error:
            raise forms.ValidationError(f"cannot read this as YAML or JSON: {error}", code="invalid")
        except (TypeError, ValueError):
            raise forms.ValidationError(
                "cannot use this: it has a value, such as a date, that is no text, number, list or mapping; quote it",
                code="invalid",
            )
        return found

    def bound_data(self, data: Any, initial: Any) -> Any:
        return initial if self.disabled else data

    def prepare_value(self, value: Any) -> Any:
        if value is None:
            return ""
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


class NamesField(YamlField):
    """Names with commas or line ends between them, or a YAML list; None where there are none."""

    def to_python(self, value: Any) -> Any:
        if isinstance(value, str) and not value.lstrip().startswith(("[", "- ")):
            return [name.strip() for name in value.replace("\n", ",").split(",") if name.strip()] or None
        found = super().to_python(value)
        if found is not None and not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
            raise forms.ValidationError("cannot use this: names are needed, such as default, qwen", code="invalid")
        return found or None

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else super().prepare_value(value)
