"""Prints the entries of some packages, hashes included, from a hashed requirement file: `locked.py FILE NAME…`."""

import re
import sys
from pathlib import Path


def entries(text: str) -> dict[str, str]:
    """Name → entry, without comments."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        start = re.match(r"([a-z0-9][-a-z0-9_.]*)==", line)
        if start is not None:
            lines = found.setdefault(start[1], [])
        if start is not None or line.lstrip().startswith("--hash="):
            lines.append(line)
    return {name: "\n".join(parts) for name, parts in found.items()}


def main(arguments: list[str]) -> int:
    """Exit codes: 0, 1 if a name is not in the file."""
    file, *names = arguments
    known = entries(Path(file).read_text())
    missing = [name for name in names if name not in known]
    if missing:
        sys.stderr.write(f"locked.py: not in {file}: {', '.join(missing)}\n")
        return 1
    sys.stdout.write("".join(f"{known[name]}\n" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
