"""The operators' pages. States are read-only; each action calls one service and reports row by row."""

from fleet.admin import catalog, journal, nodes, replicas, rollouts, users

__all__ = ["catalog", "journal", "nodes", "replicas", "rollouts", "users"]
