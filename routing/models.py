"""Keys of the router's clients and what they used."""

from django.db import models


class ApiKey(models.Model):
    """A client's key: `llmgw_<prefix>_<secret>`, of which only the prefix and the SHA-256 of the whole are kept."""

    name = models.CharField(max_length=100, unique=True)
    prefix = models.CharField(max_length=8, unique=True, editable=False)
    sha256 = models.CharField(max_length=64, editable=False)
    allowed_models = models.JSONField(null=True, blank=True)  # names that it may use; null: all
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

    def __str__(self) -> str:
        return f"{self.model} {self.at:%Y-%m-%d %H:%M}"
