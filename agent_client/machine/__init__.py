"""The life of one shard on its node as a table: (shard, event, now) → (shard, effects). Pure; the supervisor obeys."""

from agent_client.machine.state import Attempt, Failure, Limits, Shard, Why
from agent_client.machine.table import step, wake_at

__all__ = ["Attempt", "Failure", "Limits", "Shard", "Why", "step", "wake_at"]
