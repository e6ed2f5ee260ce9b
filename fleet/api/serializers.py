"""What the REST API shows. Fields are listed one by one: keys and credentials are in none."""

from typing import Any

from rest_framework import serializers

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet.domain.ledger import ledger
from fleet.domain.placement_types import Placement
from fleet.domain.reasons import Refusal
from fleet.domain.types import FleetSnapshot
from fleet.models import Event, Gpu, Node, Replica, Rollout, Shard
from fleet.services.drains import LONGEST_DRAIN_SECONDS
from fleet.services.explanations import Plan, why_rollout_waits
from fleet.strict import Strict


class GpuSerializer(serializers.ModelSerializer[Gpu]):
    holder = serializers.SerializerMethodField()

    class Meta:
        model = Gpu
        fields = [
            "uuid",
            "index",
            "name",
            "gpu_class",
            "memory_total_mib",
            "memory_used_mib",
            "compute_capability",
            "domain",
            "placeable",
            "present",
            "schedulable",
            "cordon_reason",
            "problems",
            "holder",
        ]

    def get_holder(self, gpu: Gpu) -> str | None:
        claims: list[Any] = [claim for claim in gpu.claims.all() if claim.released_at is None]
        return str(claims[0].shard.replica) if claims else None


class NodeSerializer(serializers.ModelSerializer[Node]):
    gpus = GpuSerializer(many=True, read_only=True)
    drain_left = serializers.SerializerMethodField()

    class Meta:
        model = Node
        fields = [
            "uid",
            "name",
            "status",
            "status_reason",
            "status_at",
            "schedulable",
            "cordon_reason",
            "drain_deadline_at",
            "drain_left",
            "damped_until",
            "hostname",
            "mgmt_addr",
            "agent_version",
            "labels",
            "fabrics",
            "engines",
            "connected",
            "last_seen_at",
            "orphans",
            "inventory",
            "inventory_stale_seconds",
            "gpus",
        ]

    def get_drain_left(self, node: Node) -> list[str] | None:
        """Replicas that have not left yet; null when the node is not being drained."""
        if node.drain_deadline_at is None:
            return None
        live = [shard for shard in node.shards.all() if shard.state not in ENDED_SHARD_STATES]
        return sorted({shard.replica.label for shard in live})


class ShardSerializer(serializers.ModelSerializer[Shard]):
    node = serializers.SlugRelatedField(slug_field="name", read_only=True)

    class Meta:
        model = Shard
        fields = [
            *("rank", "node", "epoch", "state", "state_at", "code", "reason", "hint", "endpoint", "pids"),
            *("phase", "progress", "running", "waiting"),
        ]


class ReplicaSerializer(serializers.ModelSerializer[Replica]):
    name = serializers.CharField(source="label", read_only=True)
    model = serializers.SlugRelatedField(slug_field="name", read_only=True)
    shards = serializers.SerializerMethodField()

    class Meta:
        model = Replica
        fields = [
            "uid",
            "name",
            "model",
            "number",
            "wish",
            "state",
            "state_at",
            "code",
            "reason",
            "explanation",
            "attempt",
            "endpoint",
            "crash_count",
            "next_try_at",
            "first_failure",
            "latest_failure",
            "shards",
        ]

    def get_shards(self, replica: Replica) -> list[dict[str, Any]]:
        newest = [shard for shard in replica.shards.all() if shard.epoch == replica.attempt]
        return list(ShardSerializer(newest, many=True).data)


class RolloutSerializer(serializers.ModelSerializer[Rollout]):
    model = serializers.SlugRelatedField(slug_field="name", read_only=True)
    waits_for = serializers.SerializerMethodField()
    checks = serializers.SerializerMethodField()

    class Meta:
        model = Rollout
        fields = [
            *("model", "origin", "target", "state", "state_at", "reason", "waits_for", "actor", "created_at"),
            "checks",
        ]

    def get_waits_for(self, rollout: Rollout) -> str:
        return why_rollout_waits(rollout)

    def get_checks(self, rollout: Rollout) -> list[dict[str, Any]]:
        return [
            {
                "node": check.node.name,
                "state": check.state,
                "code": check.code,
                "detail": check.detail,
                "hint": check.hint,
                "problems": check.found,
            }
            for check in rollout.checks.all()
        ]


class NoFields(Strict):
    """Of verbs that need nothing."""


class CordonRequest(Strict):
    reason = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class SecondsField(serializers.FloatField):
    """A number; JSON's `true` is none, though Python counts it as 1."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool):
            self.fail("invalid")
        return float(super().to_internal_value(data))


class DeadlineRequest(Strict):
    """How long what runs may go on. Without it a node has an hour, a replica its profile's time."""

    deadline_seconds = SecondsField(min_value=0, max_value=LONGEST_DRAIN_SECONDS, required=False)


class DrainRequest(DeadlineRequest):
    reason = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class GpuDrainRequest(DrainRequest):
    uuid = serializers.CharField(max_length=100)


class PlanRequest(Strict):
    """A profile beside the model's config.json; each may be anything here, and is read by its own rules."""

    profile = serializers.JSONField(required=False)
    model_config = serializers.JSONField(required=False)


class EventSerializer(serializers.ModelSerializer[Event]):
    node = serializers.SlugRelatedField[Node](slug_field="name", read_only=True)
    replica = serializers.CharField(source="replica.label", read_only=True, default=None)
    model = serializers.CharField(source="replica.model.name", read_only=True, default=None)

    class Meta:
        model = Event
        fields = ["id", "at", "kind", "severity", "text", "actor", "node", "replica", "model", "data"]


def show_ledger(snapshot: FleetSnapshot) -> list[dict[str, Any]]:
    return [
        {
            "index": line.index,
            "uuid": line.uuid,
            "use": line.use.value,
            "replica": line.replica or None,
            "attempt": line.attempt or None,
            "pids": list(line.pids),
            "text": line.text,
        }
        for line in ledger(snapshot)
    ]


def show_plan(plan: Plan) -> dict[str, Any]:
    """Values of secrets are not in a plan, so none can be shown."""
    refusal = plan.found.to_json() if isinstance(plan.found, Refusal) else None
    return {"name": plan.name, "fits": refusal is None, "placement": _placement(plan), "refusal": refusal}


def _placement(plan: Plan) -> dict[str, Any] | None:
    if not isinstance(plan.found, Placement):
        return None
    return {
        "gpu_class": plan.found.gpu_class or None,
        "fabric": plan.found.fabric or None,
        "head_address": plan.found.head_address or None,
        "head_address_origin": plan.found.head_address_origin or None,
        "preempts": list(plan.preempts),
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "gpus": [{"index": index, "uuid": uuid} for index, uuid in rank.gpus],
                "environment": [
                    {"name": row.name, "value": row.value, "origin": row.origin} for row in rank.environment
                ],
            }
            for rank in plan.ranks
        ],
    }
