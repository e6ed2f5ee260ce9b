"""What should be served. The rules for an entry stand in agent_client.profile; here is only what tables must hold."""

from django.db import models

from fleet.models.stamps import stamped


class CatalogModel(models.Model):
    """A servable model: either a profile (managed) or endpoints (router-only)."""

    name = models.CharField(max_length=127, unique=True)
    aliases = models.JSONField(default=list, blank=True)
    replicas = models.PositiveIntegerField(default=1)
    profile = models.JSONField(null=True, blank=True)
    endpoints = models.JSONField(null=True, blank=True)
    routing = models.JSONField(default=dict, blank=True)  # how the router serves it; left out: its defaults
    revision = models.PositiveIntegerField(default=1, editable=False)  # number of the newest ProfileRevision
    stable_revision = models.PositiveIntegerField(default=1, editable=False)  # what replicas go back to
    leaving = models.BooleanField(default=False, editable=False)  # deleted: the row goes with its last replica
    created_at = stamped()
    updated_at = stamped()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(profile__isnull=False, endpoints__isnull=True)
                | models.Q(profile__isnull=True, endpoints__isnull=False),
                name="model_profile_or_endpoints",
                violation_error_message="cannot save: a model has either a profile or endpoints.",
            )
        ]

    def __str__(self) -> str:
        return self.name


class ServedName(models.Model):
    """Every name and alias once over the whole catalog: the database refuses a second owner."""

    name = models.CharField(max_length=127, unique=True)
    model = models.ForeignKey(CatalogModel, on_delete=models.CASCADE, related_name="served_names")

    def __str__(self) -> str:
        return self.name


class ProfileRevision(models.Model):
    """One state of a profile. Replicas point at the revision they run; a change is always a new row."""

    model = models.ForeignKey(CatalogModel, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    profile = models.JSONField()
    served_names = models.JSONField(default=list)
    created_at = stamped()

    class Meta:
        ordering = ["model_id", "-number"]
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="revision_once_per_model")]

    def __str__(self) -> str:
        return f"{self.model_id}@{self.number}"
