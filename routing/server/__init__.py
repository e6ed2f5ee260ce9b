"""The router's processes: one child or more that serve, and the parent that keeps them. No Django in either."""
