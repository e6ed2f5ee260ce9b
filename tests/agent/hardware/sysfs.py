"""Unpacks a capture of /sys/class/infiniband (`path: value` lines) into a directory tree."""

from pathlib import Path


def unpack(text: str, root: Path) -> Path:
    """Build the tree below `root`; the fake PCI devices lie beside it. `!E…` becomes a file that can't be read.

    A directory in place of a file makes reading fail on any system, root's included.
    """
    root.mkdir(parents=True, exist_ok=True)
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if " -> " in line:
            _link(root, *line.split(" -> ", 1))
            continue
        name, _, value = line.partition(":")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if value.strip().startswith("!E"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text(value.strip() + "\n", errors="surrogateescape")
    return root


def _link(root: Path, name: str, target: str) -> None:
    link = root / name
    link.parent.mkdir(parents=True, exist_ok=True)
    real = root.parent / "_pci" / target.rsplit("/", 1)[-1]
    real.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(real)
