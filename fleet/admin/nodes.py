"""Nodes, GPUs, adapters, fabrics and streams."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display

from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.display import LABELS
from fleet.models import Adapter, AgentSession, Fabric, Gpu, Lease, Listener, Node
from fleet.services import operations


class GpuInline(TabularInline):
    model = Gpu
    extra = 0
    can_delete = False
    fields = ["index", "gpu_class", "memory_total_mib", "memory_used_mib", "domain", "placeable", "schedulable"]
    readonly_fields = fields

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Node)
class NodeAdmin(MachineOwnedAdmin):
    list_display = ["name", "state", "schedulable", "mgmt_addr", "agent_version", "connected", "last_seen_at"]
    list_filter = ["status", "schedulable", "connected"]
    search_fields = ["name", "hostname", "mgmt_addr"]
    exclude = ["credential_sha256", "past_boots"]
    inlines = [GpuInline]
    actions = ["cordon", "uncordon", "release"]

    @display(description="status", ordering="status", label=LABELS)
    def state(self, node: Node) -> str:
        return node.status

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_superuser) if hasattr(request.user, "is_superuser") else False

    @admin.action(description="Cordon: place nothing new there")
    def cordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.cordon_node(node=n, reason="", actor=actor), "cordoned")

    @admin.action(description="Uncordon")
    def uncordon(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.uncordon_node(node=n, actor=actor), "uncordoned")

    @admin.action(description="Release from quarantine")
    def release(self, request: HttpRequest, rows: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        self.each(request, rows, lambda n: operations.release_quarantine(node=n, actor=actor), "released")


@admin.register(Gpu)
class GpuAdmin(MachineOwnedAdmin):
    list_display = ["node", "index", "gpu_class", "memory_total_mib", "memory_used_mib", "placeable", "schedulable"]
    list_filter = ["gpu_class", "placeable", "present", "schedulable"]
    list_select_related = ["node"]
    search_fields = ["uuid", "node__name", "gpu_class"]
    actions = ["cordon", "uncordon"]

    @admin.action(description="Cordon the GPU")
    def cordon(self, request: HttpRequest, rows: QuerySet[Gpu]) -> None:
        self._set(request, rows, True)

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
class LeaseAdmin(ModelAdmin):
    list_display = ["name", "holder", "expires_at"]
    readonly_fields = ["name", "holder", "expires_at"]
    search_fields = ["name"]
