"""Serializers that refuse what they would else pass over. They know nothing of a fleet."""

from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError


class Strict(serializers.Serializer[Any]):
    """A field that is not known is an error: nobody wants the limit that is misspelt to be no limit.

    What was shown may be sent back as it was shown, also what can't be changed here.
    """

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            wrong = {name: self._flaw(name, data[name]) for name in data if self._is_wrong(name, data[name])}
            if wrong:
                raise ValidationError(wrong)
        return super().to_internal_value(data)

    def _is_wrong(self, name: str, value: Any) -> bool:
        field = self.fields.get(name)
        if field is None or not field.read_only:
            return field is None
        return self.instance is None or self.to_representation(self.instance).get(name) != value

    def _flaw(self, name: str, value: Any) -> list[str]:
        if name in self.fields:
            return ["it can't be set here: leave it out"]
        known = ", ".join(sorted(name for name, field in self.fields.items() if not field.read_only))
        return [f"there is no such field; there are {known}" if known else "there is no such field; there is none here"]
