"""Replicas, their shards and the cards these hold. States are written through services.transitions alone."""

import uuid

from django.db import models

from agent_client.protocol.states import ENDED_SHARD_STATES, ShardState
from fleet.domain.states import ReplicaState, ReplicaWish
from fleet.models.catalog import CatalogModel, ProfileRevision
from fleet.models.choices import choices, known
from fleet.models.inventory import Gpu
from fleet.models.nodes import Node
from fleet.models.stamps import stamped


class Replica(models.Model):
    """One serving copy of a catalog model. `wish` is people's column, `state` is computed from facts."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    model = models.ForeignKey(CatalogModel, on_delete=models.CASCADE, related_name="replica_set")
    number = models.PositiveIntegerField()  # "qwen/2"
    revision = models.ForeignKey(ProfileRevision, on_delete=models.PROTECT, related_name="replicas")
    wish = models.CharField(max_length=8, choices=choices(ReplicaWish), default=ReplicaWish.RUN)
    state = models.CharField(max_length=16, choices=choices(ReplicaState), default=ReplicaState.PENDING)
    state_at = stamped()
    code = models.CharField(max_length=60, blank=True)  # reason of the state, for programs
    reason = models.TextField(blank=True)  # the same in one sentence
    explanation = models.JSONField(null=True, blank=True)  # the whole refusal of placement
    attempt = models.PositiveIntegerField(default=0)  # the newest; fences everything older
    endpoint = models.CharField(max_length=300, blank=True)
    engine_key = models.CharField(max_length=100, blank=True, editable=False)  # secret between router and engine
    crash_count = models.PositiveIntegerField(default=0)
    ready_at = models.DateTimeField(null=True, blank=True)
    next_try_at = models.DateTimeField(null=True, blank=True)
    first_failure = models.JSONField(null=True, blank=True)
    latest_failure = models.JSONField(null=True, blank=True)
    restart_requested = models.BooleanField(default=False)
    goal = models.PositiveIntegerField(null=True, blank=True)  # revision of its next attempt; null: the one it runs
    drain_deadline_at = models.DateTimeField(null=True, blank=True)  # of a stop or restart that people asked for
    drain_for = models.DurationField(null=True, blank=True)  # from when it was set
    replaces = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="substitutes"
    )  # it takes over from that one as soon as it is ready
    created_at = stamped()

    class Meta:
        ordering = ["model__name", "number"]
        constraints = [
            known("state", ReplicaState, name="replica_state_known"),
            known("wish", ReplicaWish, name="replica_wish_known"),
            models.UniqueConstraint(
                fields=["model", "number"],
                name="replica_number_once",
                violation_error_message="cannot save: this model already has a replica with that number.",
            ),
            models.CheckConstraint(
                condition=~models.Q(state=ReplicaState.READY.value) | ~models.Q(endpoint=""),
                name="ready_replica_has_endpoint",
                violation_error_message="cannot save: a ready replica needs an endpoint.",
            ),
        ]

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        return f"{self.model.name}/{self.number}"


class Shard(models.Model):
    """The part of one attempt of a replica on one node; `epoch` is the attempt's number."""

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="shards")
    rank = models.PositiveIntegerField(default=0)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="shards")
    epoch = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=choices(ShardState), default=ShardState.ASSIGNED)
    state_at = stamped()
    wanted = models.BooleanField(default=True)  # in the node's desired state
    draining = models.BooleanField(default=False)
    drain_deadline_at = models.DateTimeField(null=True, blank=True)
    drain_for = models.DurationField(null=True, blank=True)  # from when it was set
    code = models.CharField(max_length=60, blank=True)
    reason = models.TextField(blank=True)
    hint = models.TextField(blank=True)
    endpoint = models.CharField(max_length=300, blank=True)
    pids = models.JSONField(default=list, blank=True)
    phase = models.CharField(max_length=40, blank=True)
    progress = models.FloatField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.IntegerField(null=True, blank=True)
    tail = models.JSONField(default=list, blank=True)
    fabric_env = models.JSONField(default=dict, blank=True)
    rendezvous_address = models.CharField(max_length=253, blank=True)  # where the ranks of this attempt meet
    rendezvous_port = models.PositiveIntegerField(null=True, blank=True)
    moved_at = models.DateTimeField(null=True, blank=True)  # its phase or progress last changed
    stalled_at = models.DateTimeField(null=True, blank=True)  # it owes an answer, and no sign of life since
    running = models.PositiveIntegerField(null=True, blank=True)  # requests in the engine
    waiting = models.PositiveIntegerField(null=True, blank=True)
    verdict_code = models.CharField(max_length=60, blank=True)  # why the control plane itself gave it up
    verdict = models.TextField(blank=True)
    created_at = stamped()

    class Meta:
        ordering = ["replica_id", "-epoch", "rank"]
        constraints = [
            known("state", ShardState, name="shard_state_known"),
            models.UniqueConstraint(fields=["replica", "rank", "epoch"], name="shard_once_per_attempt"),
            models.UniqueConstraint(
                fields=["replica", "rank"],
                condition=~models.Q(state__in=sorted([*(s.value for s in ENDED_SHARD_STATES), ShardState.LOST.value])),
                name="one_live_shard_per_rank",
                violation_error_message="cannot save: this rank already has a live shard.",
            ),
            models.CheckConstraint(
                condition=~models.Q(state=ShardState.READY.value) | models.Q(rank__gt=0) | ~models.Q(endpoint=""),
                name="ready_head_has_endpoint",
                violation_error_message="cannot save: a ready head needs an endpoint.",
            ),
        ]
        indexes = [
            # A tick reads what lives, and what lives is few beside what has ended.
            models.Index(
                fields=["replica"],
                condition=~models.Q(state__in=sorted(s.value for s in ENDED_SHARD_STATES)),
                name="shard_live",
            )
        ]

    def __str__(self) -> str:
        return f"{self.replica_id}/{self.rank}#{self.epoch}"


class Flow(models.Model):
    """What routers last saw in flight at a replica: with it a hung engine is told from a busy one."""

    replica = models.OneToOneField(Replica, on_delete=models.CASCADE, related_name="flow")
    attempt = models.PositiveIntegerField()
    in_flight = models.PositiveIntegerField(default=0)
    moved_at = models.DateTimeField()  # a token last came, or the first of those in flight was begun
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.replica_id}#{self.attempt}: {self.in_flight}"


class GpuClaim(models.Model):
    """A GPU held by a shard. The database refuses a second live claim on a card."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="claims")
    shard = models.ForeignKey(Shard, on_delete=models.CASCADE, related_name="claims")
    claimed_at = stamped()
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "GPU claim"
        verbose_name_plural = "GPU claims"
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"],
                condition=models.Q(released_at__isnull=True),
                name="one_live_claim_per_gpu",
                violation_error_message="cannot save: this GPU is held by another shard.",
            )
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} by {self.shard_id}"
