"""The way of a model from one revision to the next, and the questions put to nodes before it."""

from django.db import models

from fleet.domain.states import CheckState, RolloutState
from fleet.models.catalog import CatalogModel
from fleet.models.choices import choices, known
from fleet.models.nodes import Node
from fleet.models.stamps import stamped


class Rollout(models.Model):
    """One change of a profile on its way to the replicas. `origin` is what they go back to when it fails."""

    model = models.ForeignKey(CatalogModel, on_delete=models.CASCADE, related_name="rollouts")
    origin = models.PositiveIntegerField()  # numbers of revisions
    target = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=choices(RolloutState), default=RolloutState.ROLLING)
    state_at = stamped()
    reason = models.TextField(blank=True)
    actor = models.CharField(max_length=150, blank=True)
    created_at = stamped()

    class Meta:
        ordering = ["-id"]
        constraints = [
            known("state", RolloutState, name="rollout_state_known"),
            models.UniqueConstraint(
                fields=["model"],
                condition=models.Q(state__in=[RolloutState.ROLLING.value, RolloutState.PAUSED.value]),
                name="one_open_rollout_per_model",
                violation_error_message="cannot save: this model already has a rollout under way.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model}: revision {self.origin} → {self.target}"


class DryCheck(models.Model):
    """A question to a node's agent: could you run this? It is delivered until it is answered; nothing is started."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="checks")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="checks")
    spec = models.JSONField()  # a ShardSpec without its key
    replaces = models.CharField(max_length=60, blank=True)  # wire name of the shard whose cards it would take over
    state = models.CharField(max_length=8, choices=choices(CheckState), default=CheckState.OPEN)
    code = models.CharField(max_length=60, blank=True)
    detail = models.TextField(blank=True)
    hint = models.TextField(blank=True)
    problems = models.JSONField(default=list, blank=True)  # [{code, text, hint}]; an agent that lists none: []
    created_at = stamped()
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known("state", CheckState, name="check_state_known"),
            models.UniqueConstraint(fields=["rollout", "node"], name="one_check_per_rollout_and_node"),
        ]

    def __str__(self) -> str:
        return f"{self.rollout_id} on {self.node_id}"

    @property
    def found(self) -> list[dict[str, str]]:
        """Each thing that stands against it; an agent that lists none has told one."""
        if self.problems or not self.code:
            return list(self.problems)
        return [{"code": self.code, "text": self.detail, "hint": self.hint}]
