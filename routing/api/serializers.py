"""Keys and ejections in JSON. A key's secret stands in none of them but in the answer to its making."""

from typing import Any

from rest_framework import serializers

from fleet.strict import Strict
from routing.models import ApiKey, Ejection


class NoFields(Strict):
    """Of verbs that need nothing."""


class KeySerializer(Strict, serializers.ModelSerializer[ApiKey]):
    class Meta:
        model = ApiKey
        fields = [
            "id",
            "name",
            "prefix",
            "allowed_models",
            "requests_per_minute",
            "tokens_per_minute",
            "concurrency",
            "tokens_per_month",
            "expires_at",
            "revoked_at",
            "may_manage",
            "created_at",
        ]
        read_only_fields = ["id", "prefix", "revoked_at", "created_at"]
        extra_kwargs: dict[str, Any] = {
            "name": {"validators": []}
        }  # a taken name is a conflict, which the service tells

    def validate_allowed_models(self, value: Any) -> Any:
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise serializers.ValidationError("cannot use allowed_models: a list of model names, or null for all")
        return value


class NewKeySerializer(KeySerializer):
    """With the key's text, once."""

    key = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "key"]


class EjectionSerializer(serializers.ModelSerializer[Ejection]):
    class Meta:
        model = Ejection
        fields = ["router", "endpoint", "model", "reason", "failures", "since", "until"]
