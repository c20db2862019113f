"""Lint: text files end with one newline and have no trailing blanks, carriage returns or conflict marks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

RULES = {
    r"[ \t]+$": "blanks at the end of a line",
    r"^(<<<<<<<|>>>>>>>) ": "a conflict mark",
    r"\r$": "a carriage return",
}


def problems(path: Path) -> list[str]:
    """What is wrong with a file, as lines ``path:line: what``."""
    text = path.read_text()
    found = [
        f"{path}:{number}: {what}"
        for number, line in enumerate(text.split("\n"), 1)
        for pattern, what in RULES.items()
        if re.search(pattern, line)
    ]
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        found.append(f"{path}: does not end with exactly one newline")
    return found


def main() -> int:
    """Check the files named on the command line."""
    found = [problem for name in sys.argv[1:] for problem in problems(Path(name))]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
