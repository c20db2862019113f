"""Reports which conformance tests execute each opcode form of the shipped cubins.

    python scripts/coverage_of_forms.py                      # what is not covered, and figures
    python scripts/coverage_of_forms.py --out build/opcode_forms.md --operator-tests

``--operator-tests`` runs tests/ops as well, which takes minutes. The report then separates forms that only operator
tests execute from those that nothing executes. Exit code 1 if a form is executed by no conformance test.
tests/corpus/forms.py says what a form is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.corpus import coverage  # noqa: E402 - found through the line above


def operator_tests(folder: Path) -> dict[str, set[str]]:
    """Operator tests by the forms that they execute."""
    file = folder / "forms.json"
    command = [sys.executable, "-m", "pytest", "-q", "tests/ops", "-p", "tests.corpus.operator_forms"]
    subprocess.run([*command, "--forms-file", file], cwd=ROOT, check=True, stdout=sys.stderr)
    return {name: set(tests) for name, tests in json.loads(file.read_text()).items()}


def main() -> int:
    """Exit code 0 if every form is covered, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the whole report here")
    parser.add_argument("--operator-tests", action="store_true", help="run tests/ops too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forms, tests = coverage.shipped(), coverage.tests_by_form()
        text = coverage.report(forms, tests, operator_tests(folder) if options.operator_tests else {})
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    print(text.partition("| form |")[0].strip())
    return 0 if all(tests.get(form) for form in forms) else 1


if __name__ == "__main__":
    sys.exit(main())
