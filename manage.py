#!/usr/bin/env python
"""Django's command line."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "llmgw_site.settings")
    from django.core.management import execute_from_command_line

    # `router-key` is `router_key`: people type hyphens, Python's module names have none.
    argv = list(sys.argv)
    if len(argv) > 1 and not argv[1].startswith("-"):
        argv[1] = argv[1].replace("-", "_")
    execute_from_command_line(argv)


if __name__ == "__main__":
    main()
