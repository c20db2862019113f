"""Write the generated tables of README.md and docs/, or with ``--check`` say which are stale.

``--index RUN...`` first adds run folders, which are then to be committed, to results/INDEX.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sm70_kernels.evidence.integrity import sums  # noqa: E402
from sm70_kernels.evidence.runs import tables  # noqa: E402
from sm70_kernels.evidence.runs.schema import EvidenceError  # noqa: E402


def main() -> int:
    """Exit code 0 when all is as it should be, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--index", nargs="+", type=Path, default=[], metavar="RUN", help="run folders to commit")
    options = parser.parse_args()
    stale = 0
    try:
        if options.index:
            sums.write_index(ROOT / "results", lambda: [path.resolve() for path in options.index])
        for name in (tables.README, tables.RESULTS):
            path = ROOT / name
            text = tables.render(ROOT, name)
            if text != path.read_text():
                stale += 1
                print(f"{name}: {'stale, run scripts/generate_tables.py' if options.check else 'written'}")
                if not options.check:
                    path.write_text(text)
    except EvidenceError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
