"""Nodes, GPUs, adapters, fabrics and streams."""

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import strip_tags
from django.utils.safestring import SafeString
from unfold.decorators import display

from agent_client.protocol.states import ENDED_SHARD_STATES
from fleet import clock
from fleet.admin import card, machine
from fleet.admin.attempts import inside
from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.card import health, memory, texts
from fleet.admin.confirm import DrainForm, ask
from fleet.admin.display import LABELS, link, short, table, when
from fleet.admin.page import LivePage, Page, sections
from fleet.domain.states import NodeStatus
from fleet.domain.words import counted
from fleet.models import Adapter, AgentSession, Fabric, Gpu, GpuClaim, Lease, Listener, Node, Shard
from fleet.services import liveness, operations
from fleet.services.errors import FleetError


@admin.register(Node)
class NodeAdmin(LivePage, MachineOwnedAdmin):
    list_display = ["name", "state", "placing", "cards", "trouble", "address", "agent", "heard"]
    list_filter = ["status", "schedulable", "connected"]
    search_fields = ["name", "hostname", "mgmt_addr"]
    actions = ["cordon", "uncordon", "drain", "cancel_drain", "accept_losses", "release"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        there = Q(gpus__present=True)
        held = Exists(GpuClaim.objects.filter(gpu=OuterRef("gpus__pk"), released_at__isnull=True))
        sick = there & Q(gpus__placeable=False) & ~Q(gpus__problems=[])
        counts = {
            "all_cards": Count("gpus", filter=there),
            "held_cards": Count("gpus", filter=there & Q(held)),
            "sick_cards": Count("gpus", filter=sick),
        }
        return super().get_queryset(request).annotate(**counts)

    @display(description="status", ordering="status", label=LABELS)
    def state(self, node: Node) -> str:
        return node.status

    @display(description="takes work", ordering="schedulable")
    def placing(self, node: Node) -> SafeString | str:
        if node.drain_deadline_at:
            return "draining" + (f": {node.cordon_reason[:60]}" if node.cordon_reason else "")
        if node.schedulable:
            return "yes" if node.status == NodeStatus.READY else "no"
        return f"cordoned: {node.cordon_reason[:60]}" if node.cordon_reason else "cordoned"

    @display(description="GPUs held")
    def cards(self, node: Any) -> str:
        return f"{node.held_cards} of {node.all_cards}" if node.all_cards else "none"

    @display(description="GPUs sick")
    def trouble(self, node: Any) -> str:
        return str(node.sick_cards or "")

    @display(description="address")
    def address(self, node: Node) -> str:
        return node.mgmt_addr

    @display(description="agent", ordering="agent_version")
    def agent(self, node: Node) -> str:
        return node.agent_version

    @display(description="heard", ordering="last_seen_at")
    def heard(self, node: Any) -> SafeString | str:
        return when(node.last_seen_at, node.database_now) if node.last_seen_at else "never"

    def page(self, row: Node, now: datetime) -> Page:
        return machine.page(row, now)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser) if hasattr(request.user, "is_superuser") else False

    def told_before_delete(self, row: Node) -> list[str]:
        there = Shard.objects.filter(node=row).exclude(state__in=ENDED_SHARD_STATES).count()
        cards = row.gpus.filter(present=True).count()
        return [
            f"It is {row.status}, with {counted(cards, 'GPU')}; {counted(there, 'shard')} of replicas may run there. "
            "While any may, the deletion is refused.",
            "Its GPUs, adapters and history go with it. Its identity is forgotten: to come back, the machine has to "
            "join again with the join secret.",
        ]

    def delete_row(self, row: Node, actor: str) -> None:
        operations.delete_node(node=row, actor=actor, now=clock.now())

    @admin.action(description="Cordon: place nothing new there", permissions=["change"])
    def cordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.cordon_node(node=n, reason="", actor=actor), "cordoned")

    @admin.action(description="Uncordon", permissions=["change"])
    def uncordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.uncordon_node(node=n, actor=actor), "uncordoned")

    @admin.action(description="Drain: move everything away", permissions=["change"])
    def drain(self, request: HttpRequest, rows: QuerySet[Node]) -> Any:
        given = ask(
            self,
            request,
            rows,
            title="Drain",
            explain="Each is cordoned. Its replicas go when their replacements are ready, and at the deadline at last: "
            "what has no replacement by then is stopped all the same.",
            undo="«Cancel the drain» keeps what has not left yet; «Uncordon» lets the node take work again.",
            tell=_left,
            form=DrainForm,
            initial={"deadline_seconds": f"{operations.NODE_DRAIN_SECONDS:g}"},
        )
        if not isinstance(given, dict):
            return given
        common = {**given, "actor": request.user.get_username(), "now": clock.now()}
        return self.each(request, rows, lambda n: operations.drain_node(node=n, **common), "is to be drained")

    @admin.action(description="Cancel the drain", permissions=["change"])
    def cancel_drain(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.cancel_drain(node=n, actor=actor), "is no longer drained")

    @admin.action(description="Accept the loss of all silent nodes, while evictions are held", permissions=["change"])
    def accept_losses(self, request: HttpRequest, rows: QuerySet[Node]) -> Any:
        silent = Node.objects.filter(status=NodeStatus.UNREACHABLE)
        given = ask(
            self,
            request,
            silent,
            title="Accept the losses",
            explain="These nodes are silent. They may be declared lost, one after another, and what ran there is "
            "placed elsewhere. Engines that still run there answer nobody any more.",
            undo="A node that is heard again before its turn is not declared lost.",
            tell=_left,
        )
        if not isinstance(given, dict):
            return given
        try:
            names = liveness.accept_losses(actor=request.user.get_username())
        except FleetError as error:
            return self.message_user(request, error.detail, messages.ERROR)
        return self.message_user(request, f"the loss of {len(names)} nodes is accepted", messages.SUCCESS)

    @admin.action(description="Release from quarantine", permissions=["change"])
    def release(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.release_quarantine(node=n, actor=actor), "released")


def _left(node: Node) -> str:
    """What runs there, in numbers and by name."""
    shards = list(machine.living(node))
    if not shards:
        return "nothing of a replica runs there"
    names = sorted({shard.replica.label for shard in shards})
    cards = sum(len(shard.claims.all()) for shard in shards)
    told = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    requests = inside(shards)
    now = f", {counted(requests, 'request')} in them now" if requests else ""
    return f"{counted(len(names), 'replica')} on {counted(cards, 'GPU')}: {told}{now}"


@admin.register(Gpu)
class GpuAdmin(LivePage, MachineOwnedAdmin):
    list_display = ["node", "number", "kind", "memory", "holder", "health"]
    list_display_links = ["number"]
    ordering = ["node__name", "index"]
    list_filter = ["gpu_class", "placeable", "present", "schedulable"]
    list_select_related = ["node"]
    search_fields = ["uuid", "node__name", "gpu_class"]
    actions = ["cordon", "uncordon", "drain"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Gpu]:
        live = GpuClaim.objects.filter(released_at__isnull=True).select_related("shard__replica__model")
        return super().get_queryset(request).prefetch_related(Prefetch("claims", queryset=live, to_attr="live_claims"))

    def name_of(self, row: Gpu) -> str:
        return f"{row.node.name} GPU {row.index}"

    def page(self, row: Gpu, now: datetime) -> Page:
        return card.page(row, now)

    @display(description="GPU", ordering="index")
    def number(self, gpu: Gpu) -> str:
        slice_of = f", MIG {gpu.mig.get('profile')}" if isinstance(gpu.mig, dict) else ""
        return f"GPU {gpu.index}{slice_of}"

    @display(description="class", ordering="gpu_class")
    def kind(self, gpu: Gpu) -> SafeString | str:
        return short(gpu.gpu_class)

    @display(description="held by")
    def holder(self, gpu: Any) -> SafeString | str:
        held = [short(link(claim.shard.replica, claim.shard.replica.label)) for claim in gpu.live_claims]
        return held[0] if held else card.nobody(gpu)

    @display(description="memory", ordering="memory_total_mib")
    def memory(self, gpu: Gpu) -> SafeString | str:
        return short(memory(gpu))

    @display(description="health")
    def health(self, gpu: Gpu) -> str:
        return health(gpu)

    @admin.action(description="Cordon the GPU", permissions=["change"])
    def cordon(self, request: HttpRequest, rows: QuerySet[Gpu]) -> None:
        self._set(request, rows, True)

    @admin.action(description="Drain the GPU", permissions=["change"])
    def drain(self, request: HttpRequest, rows: QuerySet[Gpu]) -> Any:
        given = ask(
            self,
            request,
            rows.select_related("node"),
            title="Drain",
            explain="Each is cordoned. What uses it goes when its replacement is ready, and at the deadline at last.",
            undo="«Uncordon the GPU» ends the drain, and the card may take work again.",
            tell=lambda gpu: f"held by {strip_tags(self.holder(gpu))}",
            form=DrainForm,
            initial={"deadline_seconds": f"{operations.NODE_DRAIN_SECONDS:g}"},
        )
        if not isinstance(given, dict):
            return given
        common = {**given, "actor": request.user.get_username(), "now": clock.now()}
        act = lambda gpu: operations.drain_gpu(gpu=gpu, **common)  # noqa: E731
        return self.each(request, rows.select_related("node"), act, "is to be drained")

    @admin.action(description="Uncordon the GPU", permissions=["change"])
    def uncordon(self, request: HttpRequest, rows: QuerySet[Gpu]) -> None:
        self._set(request, rows, False)

    def _set(self, request: HttpRequest, rows: QuerySet[Gpu], cordoned: bool) -> None:
        actor = request.user.get_username()
        act = lambda gpu: operations.cordon_gpu(gpu=gpu, cordoned=cordoned, reason="", actor=actor)  # noqa: E731
        self.each(request, rows.select_related("node"), act, "cordoned" if cordoned else "uncordoned")


@admin.register(Adapter)
class AdapterAdmin(MachineOwnedAdmin):
    list_display = ["node", "name", "state", "rate", "link_layer", "netdev", "address", "on", "trouble"]
    list_display_links = ["name"]
    ordering = ["node__name", "hca", "port"]
    list_filter = ["state", "link_layer", "fabric", "present"]
    list_select_related = ["node", "fabric"]
    search_fields = ["node__name", "hca"]

    @display(description="port", ordering="hca")
    def name(self, adapter: Adapter) -> str:
        return f"{adapter.hca}/{adapter.port}"

    @display(description="fabric", ordering="fabric__name")
    def on(self, adapter: Adapter) -> SafeString | str:
        return short(adapter.fabric.name) if adapter.fabric else "none named"

    @display(description="rate", ordering="rate_gbps")
    def rate(self, adapter: Adapter) -> SafeString | str:
        return short(f"{adapter.rate_gbps:g} Gb/s" if adapter.rate_gbps else "")

    @display(description="problems")
    def trouble(self, adapter: Adapter) -> str:
        return texts(adapter) or ("" if adapter.present else "no longer there")


@admin.register(Fabric)
class FabricAdmin(LivePage, MachineOwnedAdmin):
    list_display = ["name", "ports", "machines"]
    search_fields = ["name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Fabric]:
        there = Q(adapters__present=True)
        up = there & Q(adapters__state__in=["ACTIVE", "ACTIVE_DEFER"])
        counts = {
            "up": Count("adapters", filter=up),
            "known": Count("adapters", filter=there),
            "on": Count("adapters__node", filter=up, distinct=True),
        }
        return super().get_queryset(request).annotate(**counts)

    def page(self, row: Any, now: datetime) -> Page:
        ports = row.adapters.filter(present=True).select_related("node").order_by("node__name", "hca", "port")
        lines = [
            (link(port.node, port.node.name), f"{port.hca}/{port.port}", port.state, port.link_layer, texts(port))
            for port in ports
        ]
        return Page(
            sentence=f"{row.name}: {row.up} of {counted(row.known, 'port')} active, on {counted(row.on, 'node')}.",
            following="A replica over several nodes stays on one fabric. Its name is given in each node's agent.yaml.",
            sections=sections(("Ports", table(("node", "port", "state", "link", "problems"), lines))),
        )

    @display(description="ports active")
    def ports(self, fabric: Any) -> str:
        return f"{fabric.up} of {fabric.known}"

    @display(description="nodes with an active port")
    def machines(self, fabric: Any) -> int:
        return int(fabric.on)


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
