"""What README shows runs, and links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "csrc/*.md", "docker/*.md") for path in ROOT.glob(pattern)
)


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_example_of_the_readme_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), found)
    k, v = (found[name].to(torch.float8_e4m3fn).float() for name in ("k", "v"))
    weights = torch.softmax(found["q"][0].float() @ k[:, 0].T / 128**0.5, dim=-1)
    torch.testing.assert_close(found["out"][0].float(), weights @ v[:, 0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), f"{path.relative_to(ROOT)}: {target}: there is no {name}"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{path.relative_to(ROOT)}: {target}: no such heading"
