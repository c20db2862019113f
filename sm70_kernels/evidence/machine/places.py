"""Paths as evidence shows them: relative to the checkout or the environment, without users or hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels.build.settings import ROOT

ENVIRONMENT_NAME = "$ENVIRONMENT"


@dataclass(frozen=True)
class Places:
    """The folders that get a name: checkout, environment, base Python, home."""

    root: Path
    environment: Path
    base_python: Path
    home: Path | None

    def path(self, path: Path | str) -> str:
        """Relative to the checkout, ``$ENVIRONMENT/...``, or the bare name of a file elsewhere."""
        place = Path(path)
        for folder, name in ((self.environment, ENVIRONMENT_NAME), (self.root, None)):
            if place.is_relative_to(folder):
                relative = str(place.relative_to(folder))
                return relative if name is None else f"{name}/{relative}"
        return place.name

    def text(self, text: str) -> str:
        """Free text, a log for instance, with the known folders replaced by their names."""
        names = {
            f"{self.root}/": "",
            str(self.root): ".",
            str(self.environment): ENVIRONMENT_NAME,
            str(self.base_python): "$PYTHON",
        }
        # In a container a user without an entry in passwd has '/' for a home.
        if self.home is not None and len(self.home.parts) > 1:
            names[str(self.home)] = "~"
        for folder, name in sorted(names.items(), key=lambda item: -len(item[0])):
            end = "" if folder.endswith("/") else r"(?![\w-])"
            text = re.sub(rf"(?<![\w.-]){re.escape(folder)}{end}", lambda _, name=name: name, text)  # type: ignore[misc]
        return re.sub(r"pytest-of-[^/\s\"']+", "pytest-of-user", text)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """A command line whose program is a bare name and whose paths are relative."""
        return [self.path(word) if word.startswith("/") else self.text(word) for word in arguments]


def here(root: Path = ROOT) -> Places:
    """The places of this process."""
    try:
        home: Path | None = Path.home()
    except RuntimeError:
        home = None
    return Places(root, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), home)


def scrub_file(path: Path, places: Places) -> None:
    """Rewrite a text file without absolute paths; bytes that are no UTF-8 become replacement characters."""
    path.write_text(places.text(path.read_text(errors="replace")))


def scrub_junit(path: Path, places: Places) -> None:
    """Remove the host name and absolute paths from a JUnit file."""
    text = re.sub(r'\s+hostname="[^"]*"', "", path.read_text(errors="replace"))
    path.write_text(places.text(text))
