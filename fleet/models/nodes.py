"""Nodes and the streams they hold. Status is written through services.transitions alone."""

import uuid

from django.db import models

from fleet.domain.states import NodeStatus
from fleet.models.choices import choices, known
from fleet.models.stamps import stamped


class Node(models.Model):
    """A machine with an agent. `uid` is its identity, issued here; `name` is a label that its owner chose."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=253, unique=True)
    credential_sha256 = models.CharField(max_length=64, blank=True, editable=False)

    status = models.CharField(max_length=16, choices=choices(NodeStatus), default=NodeStatus.JOINING)
    status_reason = models.TextField(blank=True)
    status_at = stamped()
    schedulable = models.BooleanField(default=True)
    cordon_reason = models.CharField(max_length=500, blank=True)
    drain_deadline_at = models.DateTimeField(null=True, blank=True)
    drain_for = models.DurationField(null=True, blank=True)  # from when it was set

    hostname = models.CharField(max_length=253, blank=True)
    mgmt_addr = models.CharField(max_length=253, blank=True)
    machine_id = models.CharField(max_length=64, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    instance_id = models.CharField(max_length=64, blank=True)
    loss_accepted = models.BooleanField(default=False)  # a person accepts its loss although evictions are held
    returns = models.PositiveIntegerField(default=0)  # after silence, each within an hour of the one before
    returned_at = models.DateTimeField(null=True, blank=True)
    damped_until = models.DateTimeField(null=True, blank=True)  # it comes and goes: nothing new until then
    past_boots = models.JSONField(default=list, blank=True)  # superseded "machine/boot" pairs, newest last
    agent_version = models.CharField(max_length=40, blank=True)
    protocol_version = models.PositiveIntegerField(null=True, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    fabrics = models.JSONField(default=list, blank=True)
    engines = models.JSONField(default=dict, blank=True)  # engine kind → version
    orphans = models.JSONField(default=list, blank=True)  # engines that no replica claims, by its agent's last word
    inventory = models.JSONField(default=dict, blank=True)  # as reported, DESIGN.md section 5
    inventory_fingerprint = models.CharField(max_length=64, blank=True)
    inventory_at = models.DateTimeField(null=True, blank=True)
    inventory_stale_seconds = models.FloatField(null=True, blank=True)

    # The newest stream; its number is unique over the fleet, so that `WHERE session IN (…)` fences exactly.
    session = models.ForeignKey(
        "fleet.AgentSession", null=True, blank=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    connected = models.BooleanField(default=False, editable=False)
    last_seen_at = models.DateTimeField(null=True, blank=True)  # the database's clock
    desired_revision = models.PositiveBigIntegerField(default=0, editable=False)  # grows with each order
    applied_revision = models.PositiveBigIntegerField(default=0, editable=False)  # what the agent says it applied
    created_at = stamped()

    class Meta:
        ordering = ["name"]
        constraints = [known("status", NodeStatus, name="node_status_known")]

    def __str__(self) -> str:
        return self.name


class AgentSession(models.Model):
    """One agent connection. The newest of a node fences the older ones."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="sessions")
    remote = models.CharField(max_length=100, blank=True)
    instance_id = models.CharField(max_length=64, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    opened_at = stamped()
    closed_at = models.DateTimeField(null=True, blank=True)
    close_reason = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.node_id}#{self.pk}"


class Listener(models.Model):
    """A process that holds agent streams. Liveness is judged only while one has been listening long enough.

    `started_at` is when it last began to listen: at its start, and after each time that it could not write.
    """

    name = models.CharField(max_length=200, unique=True)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Lease(models.Model):
    """A named lock with an end: it saves work when two reconcilers run; correctness never rests on it."""

    name = models.CharField(max_length=100, unique=True)
    holder = models.CharField(max_length=200, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name
