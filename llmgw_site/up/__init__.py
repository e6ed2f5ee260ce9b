"""`manage.py up`: one supervisor for the control plane's processes, on an embedded default."""
