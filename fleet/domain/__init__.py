"""Decisions of the fleet as pure functions over frozen snapshots: no framework, no clock, no I/O."""
