"""``python -m sm70_kernels.build``: build in place."""

from __future__ import annotations

import argparse
import sys
import time

from sm70_kernels._variables import VariableError
from sm70_kernels.build.inplace import build
from sm70_kernels.build.settings import ROOT, BuildError


def main() -> int:
    """Parse the command line and build; exit code 1 with a sentence when it fails."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.build", description=__doc__)
    parser.add_argument("--clean", action="store_true", help="remove every intermediate file first")
    parser.add_argument("--jobs", type=int, help="commands at a time; one for each core by default")
    options = parser.parse_args()
    start = time.monotonic()
    try:
        manifest = build(clean=options.clean, jobs=options.jobs)
    except (BuildError, VariableError) as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    print(f"built in {time.monotonic() - start:.1f} s: {manifest.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
