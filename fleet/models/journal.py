"""Orders to agents (the outbox) and what happened (events)."""

from django.db import models

from fleet.domain.states import CommandKind, CommandState, Severity
from fleet.models.choices import choices, known
from fleet.models.nodes import Node
from fleet.models.replicas import Replica, Shard
from fleet.models.stamps import stamped


class Command(models.Model):
    """An order to a node's agent: a row first. It is delivered until it is answered."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="commands")
    shard = models.ForeignKey(Shard, on_delete=models.CASCADE, related_name="commands")
    kind = models.CharField(max_length=8, choices=choices(CommandKind))
    state = models.CharField(max_length=8, choices=choices(CommandState), default=CommandState.OPEN)
    revision = models.PositiveBigIntegerField()  # the node's desired revision that contains it
    reason = models.CharField(max_length=500, blank=True)
    answer = models.CharField(max_length=500, blank=True)
    created_at = stamped()
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known("kind", CommandKind, name="command_kind_known"),
            known("state", CommandState, name="command_state_known"),
            models.UniqueConstraint(
                fields=["shard", "kind"],
                condition=models.Q(state=CommandState.OPEN.value),
                name="one_open_command_per_shard_and_kind",
            ),
        ]
        indexes = [models.Index(fields=["node", "state"], name="command_node_state")]

    def __str__(self) -> str:
        return f"{self.kind} {self.shard_id}"


class Event(models.Model):
    """One line of the fleet's history. Written in the transaction of the change that it tells of."""

    at = stamped(db_index=True)
    kind = models.CharField(max_length=60, db_index=True)
    severity = models.CharField(max_length=8, choices=choices(Severity), default=Severity.INFO)
    text = models.TextField()
    actor = models.CharField(max_length=150, blank=True)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="events")
    replica = models.ForeignKey(Replica, null=True, blank=True, on_delete=models.SET_NULL, related_name="events")
    data = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.text
