"""The light agent: runs on a GPU machine without Django, supervises engines, speaks to the control plane."""

__version__ = "0.1.0"
