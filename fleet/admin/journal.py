"""Orders and events."""

from django.contrib import admin
from unfold.decorators import display

from fleet.admin.base import MachineOwnedAdmin
from fleet.admin.display import LABELS
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
    list_display = ["at", "shown_severity", "kind", "text", "actor"]
    list_filter = ["severity", "kind"]
    search_fields = ["text"]
    show_full_result_count = False

    @display(description="severity", ordering="severity", label=LABELS)
    def shown_severity(self, event: Event) -> str:
        return event.severity
