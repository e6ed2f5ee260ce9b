"""Orders and events."""

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.display import LABELS, short
from fleet.models import Command, Event


@admin.register(Command)
class CommandAdmin(MachineOwnedAdmin):
    list_display = ["id", "kind", "node", "shard", "shown_state", "reason", "answer", "created_at"]
    list_filter = ["kind", "state"]
    list_select_related = ["node", "shard"]
    search_fields = ["node__name", "reason", "answer"]

    @display(description="state", ordering="state", label=LABELS)
    def shown_state(self, command: Command) -> str:
        return command.state


@admin.register(Event)
class EventAdmin(MachineOwnedAdmin):
    list_display = ["when", "shown_severity", "text", "actor", "kind"]
    list_filter = ["severity", "kind"]
    search_fields = ["text", "actor"]
    date_hierarchy = "at"
    list_before_template = "fleet/listed.html"
    show_full_result_count = False

    @display(description="when (UTC)", ordering="id")
    def when(self, event: Event) -> SafeString:
        return short(f"{event.at:%Y-%m-%d %H:%M:%S}")

    @display(description="severity", ordering="severity", label=LABELS)
    def shown_severity(self, event: Event) -> str:
        return event.severity
