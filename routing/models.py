"""Keys of the router's clients and what they used; which endpoints the routers left out."""

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from agent_client.profile import KEY_LIMITS


def _limit(name: str) -> dict[str, Any]:
    return {"null": True, "blank": True, "validators": [MinValueValidator(1), MaxValueValidator(KEY_LIMITS[name])]}


class ApiKey(models.Model):
    """A client's key: `llmgw_<prefix>_<secret>`, of which only the prefix and the SHA-256 of the whole are kept."""

    name = models.CharField(max_length=100, unique=True)
    prefix = models.CharField(max_length=8, unique=True, editable=False)
    sha256 = models.CharField(max_length=64, editable=False)
    allowed_models = models.JSONField(null=True, blank=True)  # names that it may use; null: all
    requests_per_minute = models.PositiveIntegerField(**_limit("requests_per_minute"))
    tokens_per_minute = models.PositiveBigIntegerField(**_limit("tokens_per_minute"))
    concurrency = models.PositiveIntegerField("requests at once", **_limit("concurrency"))
    tokens_per_month = models.PositiveBigIntegerField(**_limit("tokens_per_month"))
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    may_manage = models.BooleanField(default=False)  # may also use the REST API
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "API key"
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Usage(models.Model):
    """Tokens of one request, as the engine counted them. `uid` makes ingestion exactly-once."""

    uid = models.UUIDField(unique=True)
    at = models.DateTimeField(db_index=True)
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="usage")
    model = models.CharField(max_length=127, db_index=True)
    endpoint = models.CharField(max_length=200, blank=True)
    path = models.CharField(max_length=100, blank=True)
    status = models.PositiveIntegerField(null=True, blank=True)
    completed = models.BooleanField(default=True)
    prompt_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    completion_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "usage"
        indexes = [models.Index(fields=["key", "at"], name="usage_of_a_key")]

    def __str__(self) -> str:
        return f"{self.model} {self.at:%Y-%m-%d %H:%M}"


class Ejection(models.Model):
    """An endpoint that a router's process leaves out for now. The router's feed alone writes it, whole at each look."""

    router = models.CharField(max_length=100)  # host and process
    endpoint = models.CharField(max_length=200)
    model = models.CharField(max_length=127)
    reason = models.CharField(max_length=200)
    failures = models.PositiveIntegerField()
    since = models.DateTimeField()
    until = models.DateTimeField()  # when it is asked next

    class Meta:
        ordering = ["endpoint", "router"]
        constraints = [models.UniqueConstraint(fields=["router", "endpoint"], name="one_ejection_per_process")]

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.reason}"
