"""What nodes hold: GPUs, HCA ports and the fabrics they are on. Rows follow the agents' reports."""

from django.db import models

from fleet.models.nodes import Node
from fleet.models.stamps import stamped


class Fabric(models.Model):
    """A named RDMA network. People name it in agent.yaml; it is never derived from a GID prefix."""

    name = models.CharField(max_length=100, unique=True)
    created_at = stamped()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Gpu(models.Model):
    """A card or a MIG slice. Memory in MiB; a figure that is not known is null, never 0."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(max_length=100)
    index = models.IntegerField(null=True, blank=True)
    name = models.CharField(max_length=200, blank=True)
    gpu_class = models.CharField(max_length=100, blank=True, db_index=True)
    bus = models.CharField(max_length=20, blank=True)
    memory_total_mib = models.PositiveBigIntegerField(null=True, blank=True)
    memory_used_mib = models.PositiveBigIntegerField(null=True, blank=True)
    compute_capability = models.CharField(max_length=10, blank=True)
    numa = models.IntegerField(null=True, blank=True)
    domain = models.CharField(max_length=100, blank=True)  # NVLink domain; empty when unknown or alone
    spans_nodes = models.BooleanField(default=False)  # the domain is a rack's: its id means the same on other nodes
    mig = models.JSONField(null=True, blank=True)
    placeable = models.BooleanField(default=True)  # the agent's word: health, MIG parent
    present = models.BooleanField(default=True)  # in the newest report
    problems = models.JSONField(default=list, blank=True)
    processes = models.JSONField(default=list, blank=True)  # foreign ones too
    schedulable = models.BooleanField(default=True)
    cordon_reason = models.CharField(max_length=500, blank=True)
    drain_deadline_at = models.DateTimeField(null=True, blank=True)
    drain_for = models.DurationField(null=True, blank=True)  # from when it was set

    class Meta:
        verbose_name = "GPU"
        verbose_name_plural = "GPUs"
        ordering = ["node_id", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["node", "uuid"],
                name="gpu_once_per_node",
                violation_error_message="cannot save: this node already has a GPU with that UUID.",
            )
        ]
        indexes = [
            # Each tick asks for them, and there are hardly ever any.
            models.Index(
                fields=["drain_deadline_at"], condition=models.Q(drain_deadline_at__isnull=False), name="gpu_draining"
            )
        ]

    def __str__(self) -> str:
        return f"{self.gpu_class or self.name} #{self.index}"


class Adapter(models.Model):
    """One port of an HCA."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="adapters")
    hca = models.CharField(max_length=100)
    port = models.PositiveIntegerField()
    state = models.CharField(max_length=40, blank=True)
    link_layer = models.CharField(max_length=40, blank=True)
    rate_gbps = models.FloatField(null=True, blank=True)
    netdev = models.CharField(max_length=100, blank=True)
    address = models.CharField(max_length=45, null=True, blank=True)  # IP of netdev; empty: it has none; null: unknown
    gid_prefix = models.CharField(max_length=64, blank=True)
    gid_index = models.IntegerField(null=True, blank=True)
    numa = models.IntegerField(null=True, blank=True)
    fabric = models.ForeignKey(Fabric, null=True, blank=True, on_delete=models.SET_NULL, related_name="adapters")
    problems = models.JSONField(default=list, blank=True)
    present = models.BooleanField(default=True)

    class Meta:
        ordering = ["node_id", "hca", "port"]
        constraints = [
            models.UniqueConstraint(
                fields=["node", "hca", "port"],
                name="adapter_once_per_node",
                violation_error_message="cannot save: this node already has that HCA port.",
            )
        ]

    def __str__(self) -> str:
        return f"{self.hca}/{self.port}"
