"""Nodes, GPUs, adapters, fabrics and streams."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import snapshots
from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.confirm import DrainForm, ask
from fleet.admin.display import LABELS, table
from fleet.domain.ledger import ledger
from fleet.domain.states import NodeStatus
from fleet.models import Adapter, AgentSession, Event, Fabric, Gpu, GpuClaim, Lease, Listener, Node, Shard
from fleet.services import liveness, operations
from fleet.services.errors import FleetError


def memory(gpu: Gpu) -> str:
    """Used and whole, in GiB."""
    if gpu.memory_total_mib is None:
        return "-"
    used = "-" if gpu.memory_used_mib is None else f"{gpu.memory_used_mib / 1024:.1f}"
    return f"{used} of {gpu.memory_total_mib / 1024:.1f} GiB"


def health(gpu: Gpu) -> str:
    return texts(gpu) or ("ok" if gpu.placeable else "not placeable")


def texts(row: Gpu | Adapter) -> str:
    """Its problems, in words."""
    return "; ".join(str(problem.get("text", "")) for problem in row.problems if isinstance(problem, dict))


@admin.register(Node)
class NodeAdmin(MachineOwnedAdmin):
    list_display = ["name", "state", "placing", "cards", "address", "agent_version", "heard"]
    list_filter = ["status", "schedulable", "connected"]
    search_fields = ["name", "hostname", "mgmt_addr"]
    actions = ["cordon", "uncordon", "drain", "cancel_drain", "accept_losses", "release"]
    fieldsets = [
        (None, {"fields": ["sentence", "warnings", "gpu_table", "adapter_table"]}),
        ("Runs there", {"fields": ["shard_table"]}),
        ("Events", {"fields": ["events"]}),
        (
            "Facts",
            {
                "classes": ["collapse"],
                "fields": [
                    *("uid", "hostname", "mgmt_addr", "agent_version", "engines", "labels", "fabrics"),
                    *("machine_id", "boot_id", "last_seen_at", "inventory_at", "inventory_stale_seconds", "inventory"),
                ],
            },
        ),
    ]
    readonly_fields = ["uid", "sentence", "warnings", "gpu_table", "adapter_table", "shard_table", "events"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        there = Q(gpus__present=True)
        held = Exists(GpuClaim.objects.filter(gpu=OuterRef("gpus__pk"), released_at__isnull=True))
        counts = {"all_cards": Count("gpus", filter=there), "held_cards": Count("gpus", filter=there & Q(held))}
        return super().get_queryset(request).annotate(**counts)

    @display(description="placing", ordering="schedulable")
    def placing(self, node: Node) -> str:
        return (
            "yes" if node.schedulable else f"cordoned: {node.cordon_reason[:60]}" if node.cordon_reason else "cordoned"
        )

    @display(description="GPUs held")
    def cards(self, node: Any) -> str:
        return f"{node.held_cards} of {node.all_cards}" if node.all_cards else "none"

    @display(description="address")
    def address(self, node: Node) -> str:
        return node.mgmt_addr

    @display(description="last heard", ordering="last_seen_at")
    def heard(self, node: Node) -> str:
        return f"{node.last_seen_at:%Y-%m-%d %H:%M:%S}" if node.last_seen_at else "never"

    @display(description="Now")
    def sentence(self, node: Node) -> str:
        why = f": {node.status_reason}" if node.status_reason else ""
        cordon = (
            "" if node.schedulable else " It is cordoned" + (f": {node.cordon_reason}" if node.cordon_reason else "")
        )
        if node.drain_deadline_at:
            left = Shard.objects.filter(node=node).exclude(state__in=ENDED_SHARD_STATES).count()
            cordon += f"; {left} shards are to leave by {node.drain_deadline_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{node.name} is {node.status} since {node.status_at:%Y-%m-%d %H:%M:%S} UTC{why}.{cordon}"

    @display(description="Warnings")
    def warnings(self, node: Node) -> SafeString | str:
        told = node.inventory.get("warnings")
        found = [text for text in told if isinstance(text, str)] if isinstance(told, list) else []
        return format_html_join("", "<p>{}</p>", ((text,) for text in found)) or "-"

    @display(description="GPUs")
    def gpu_table(self, node: Node) -> SafeString | str:
        holders = {line.gpu: line.text for line in ledger(snapshots.load(node=node.pk))}
        rows = [
            (g.index, g.gpu_class, memory(g), g.domain, holders.get(g.pk), health(g))
            for g in node.gpus.filter(present=True).order_by("index")
        ]
        return table(("GPU", "class", "memory", "domain", "held by", "health"), rows)

    @display(description="Adapters")
    def adapter_table(self, node: Node) -> SafeString | str:
        rows = [
            (a.hca, a.port, a.state, f"{a.rate_gbps:g} Gb/s" if a.rate_gbps else None, a.link_layer, a.fabric, texts(a))
            for a in node.adapters.filter(present=True).select_related("fabric")
        ]
        return table(("HCA", "port", "state", "rate", "link", "fabric", "problems"), rows)

    @display(description="Replicas")
    def shard_table(self, node: Node) -> SafeString | str:
        shards = Shard.objects.filter(node=node).exclude(state__in=ENDED_SHARD_STATES).select_related("replica__model")
        rows = [(s.replica.label, s.rank, s.state, ", ".join(map(str, s.pids)), s.endpoint, s.reason) for s in shards]
        return table(("replica", "rank", "state", "pid", "endpoint", "reason"), rows)

    @display(description="Events")
    def events(self, node: Node) -> SafeString | str:
        rows = Event.objects.filter(node=node)[:30]
        return table(("at (UTC)", "what"), [(f"{e.at:%Y-%m-%d %H:%M:%S}", e.text) for e in rows])

    @display(description="status", ordering="status", label=LABELS)
    def state(self, node: Node) -> str:
        return node.status

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser) if hasattr(request.user, "is_superuser") else False

    def delete_row(self, row: Node, actor: str) -> None:
        operations.delete_node(node=row, actor=actor, now=timezone.now())

    @admin.action(description="Cordon: place nothing new there")
    def cordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.cordon_node(node=n, reason="", actor=actor), "cordoned")

    @admin.action(description="Uncordon")
    def uncordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.uncordon_node(node=n, actor=actor), "uncordoned")

    @admin.action(description="Drain: move everything away")
    def drain(self, request: HttpRequest, rows: QuerySet[Node]) -> Any:
        given = ask(
            self,
            request,
            rows,
            title="Drain nodes",
            explain="Each is cordoned. Its replicas go when their replacements are ready, and at the deadline at last.",
            form=DrainForm,
            initial={"deadline_seconds": operations.NODE_DRAIN_SECONDS},
        )
        if not isinstance(given, dict):
            return given
        common = {**given, "actor": request.user.get_username(), "now": timezone.now()}
        return self.each(request, rows, lambda n: operations.drain_node(node=n, **common), "is to be drained")

    @admin.action(description="Cancel the drain")
    def cancel_drain(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.cancel_drain(node=n, actor=actor), "is no longer drained")

    @admin.action(description="Accept the loss of all silent nodes, while evictions are held")
    def accept_losses(self, request: HttpRequest, rows: QuerySet[Node]) -> Any:
        silent = Node.objects.filter(status=NodeStatus.UNREACHABLE)
        given = ask(
            self,
            request,
            silent,
            title="Accept the losses",
            explain="These nodes are silent. They may be declared lost, and their replicas are placed elsewhere.",
        )
        if not isinstance(given, dict):
            return given
        try:
            names = liveness.accept_losses(actor=request.user.get_username())
        except FleetError as error:
            return self.message_user(request, error.detail, messages.ERROR)
        return self.message_user(request, f"the loss of {len(names)} nodes is accepted", messages.SUCCESS)

    @admin.action(description="Release from quarantine")
    def release(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.release_quarantine(node=n, actor=actor), "released")


@admin.register(Gpu)
class GpuAdmin(MachineOwnedAdmin):
    list_display = ["__str__", "node", "gpu_class", "memory", "domain", "placeable", "schedulable", "health"]
    list_filter = ["gpu_class", "placeable", "present", "schedulable"]
    list_select_related = ["node"]
    search_fields = ["uuid", "node__name", "gpu_class"]
    actions = ["cordon", "uncordon", "drain"]

    @display(description="memory", ordering="memory_total_mib")
    def memory(self, gpu: Gpu) -> str:
        return memory(gpu)

    @display(description="health")
    def health(self, gpu: Gpu) -> str:
        return health(gpu)

    @admin.action(description="Cordon the GPU")
    def cordon(self, request: HttpRequest, rows: QuerySet[Gpu]) -> None:
        self._set(request, rows, True)

    @admin.action(description="Drain the GPU")
    def drain(self, request: HttpRequest, rows: QuerySet[Gpu]) -> Any:
        given = ask(
            self,
            request,
            rows,
            title="Drain GPUs",
            explain="Each is cordoned. What uses it goes when its replacement is ready, and at the deadline at last.",
            form=DrainForm,
            initial={"deadline_seconds": operations.NODE_DRAIN_SECONDS},
        )
        if not isinstance(given, dict):
            return given
        common = {**given, "actor": request.user.get_username(), "now": timezone.now()}
        act = lambda gpu: operations.drain_gpu(gpu=gpu, **common)  # noqa: E731
        return self.each(request, rows.select_related("node"), act, "is to be drained")

    @admin.action(description="Uncordon the GPU")
    def uncordon(self, request: HttpRequest, rows: QuerySet[Gpu]) -> None:
        self._set(request, rows, False)

    def _set(self, request: HttpRequest, rows: QuerySet[Gpu], cordoned: bool) -> None:
        actor = request.user.get_username()
        act = lambda gpu: operations.cordon_gpu(gpu=gpu, cordoned=cordoned, reason="", actor=actor)  # noqa: E731
        self.each(request, rows.select_related("node"), act, "cordoned" if cordoned else "uncordoned")


@admin.register(Adapter)
class AdapterAdmin(MachineOwnedAdmin):
    list_display = ["node", "hca", "port", "state", "rate_gbps", "link_layer", "fabric", "present"]
    list_filter = ["state", "link_layer", "fabric", "present"]
    list_select_related = ["node", "fabric"]
    search_fields = ["node__name", "hca"]


@admin.register(Fabric)
class FabricAdmin(MachineOwnedAdmin):
    list_display = ["name", "created_at"]
    search_fields = ["name"]


@admin.register(AgentSession)
class AgentSessionAdmin(MachineOwnedAdmin):
    list_display = ["id", "node", "remote", "opened_at", "closed_at", "close_reason"]
    list_select_related = ["node"]
    list_filter = ["opened_at"]
    search_fields = ["node__name", "remote"]


@admin.register(Listener)
class ListenerAdmin(MachineOwnedAdmin):
    list_display = ["name", "started_at", "seen_at"]
    search_fields = ["name"]


@admin.register(Lease)
class LeaseAdmin(MachineOwnedAdmin):
    list_display = ["name", "holder", "expires_at"]
    search_fields = ["name"]
