"""Figures in README and docs are generated, and what they say is true."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.integrity import sums
from sm70_kernels.evidence.runs import samples, tables
from sm70_kernels.evidence.runs.schema import EvidenceError

#: What a measurement looks like: a number and a unit of time or rate, a share of a roof, a speed-up.
MEASURED = re.compile(
    r"\d[\d.,]*(?:\s(?:to|-)\s[\d.]+)?\s?"
    r"(?:(?:ns|µs|us|ms|seconds?|minutes?|min|[KMGT]i?B/s|[MGT]FLOP/s|instructions/s|tokens/s)\b"
    r"|% of (?:the|a|its)?\s?(?:\w+\s)?(?:roof|peak|copy)|(?:x|×|times)\s(?:faster|slower))"
)
#: Figures that no run of this package measured, with the reason why they may be typed by hand.
ALLOWED = {
    ("docs/benchmark-method.md", "0.5 µs"): "resolution of events that CUDA's documentation states",
    ("docs/benchmark-method.md", "850 GB/s"): "what the cycle model assumes",
    ("docs/lab.md", "850 GB/s"): "output of the page's example, which calls itself an estimate",
    ("docs/lab.md", "0.2% of the roof"): "output of the page's example, which calls itself an estimate",
    ("docs/lab.md", "0.0000 ms"): "output of the page's example, which calls itself an estimate",
    ("docs/cycle-model.md", "850 GB/s"): "what the cycle model assumes",
    ("docs/cycle-model.md", "2 us"): "what the cycle model assumes",
}


def pages() -> list[str]:
    return [tables.README, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("name", [tables.README, tables.RESULTS])
def test_generated_tables_are_not_stale(name: str) -> None:
    assert tables.render(ROOT, name) == (ROOT / name).read_text(), "run scripts/generate_tables.py"


@pytest.mark.parametrize("name", pages())
def test_no_figure_is_typed_by_hand(name: str) -> None:
    text = tables.outside((ROOT / name).read_text())
    found = [
        f"{name}:{number}: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in MEASURED.finditer(line)
        if (name, match[0]) not in ALLOWED
    ]
    assert found == [], "generate it (sm70_kernels/evidence/runs/tables.py), or give the reason in ALLOWED"


def test_the_allowed_figures_are_still_there() -> None:
    assert [place for place in ALLOWED if place[1] not in tables.outside((ROOT / place[0]).read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "0.1690 ms",
        "3521 GB/s",
        "77.0 TFLOP/s",
        "83 % of the roof",
        "2.5 µs",
        "2x faster",
        "about 5 minutes",
        "795 to 822 GB/s",
    ],
)
def test_a_typed_figure_is_seen(text: str) -> None:
    assert MEASURED.search(tables.outside(f"a <!-- generated: x -->\n1 ms\n<!-- end generated --> {text} b"))


def test_a_generated_figure_is_not_a_typed_one() -> None:
    assert not MEASURED.search(tables.outside("<!-- generated: x -->\n\n1 ms\n\n<!-- end generated -->\n"))


def test_every_figure_of_the_readme_says_where_it_is_from() -> None:
    (block,) = re.findall(
        r"<!-- generated: results -->\n\n(.*?)\n\n<!-- end", (ROOT / tables.README).read_text(), re.DOTALL
    )
    for line in block.splitlines()[2:]:
        where = line.split(" | ")[2]
        assert re.fullmatch(
            r"measured on .*V100.*|measured on .* \(PTX JIT; not V100 times\)|run on the emulated V100.*", where
        )


def test_no_time_of_a_run_through_the_jit_is_shown() -> None:
    for made in (tables.overview(ROOT, lambda run: "older"), tables.kv_cache(ROOT)):
        if "not V100 times" in made:
            assert not MEASURED.search(made)


def test_published_figures_have_sources_and_a_date() -> None:
    found = tables.published(ROOT)
    assert re.fullmatch(r"\d{4}-\d{2}", found.accessed)
    assert all(source.title and source.where for source in found.sources.values())
    assert {entry.source for entry in (*found.roofs, *found.operators)} == set(found.sources)


def test_every_estimate_is_called_one_and_stands_beside_the_replaced_system() -> None:
    made = tables.estimates(ROOT)
    run = tables.latest(ROOT, "bench", gpu=False)
    assert re.match(
        r"Estimated, not measured, .* at 1380 MHz and 850 GB/s, machine table revision \d+, .*" + run.folder.name, made
    )
    rows = {row.name: row.facts for row in samples.read_rows(run.folder) if row.kind == samples.ESTIMATED}
    assert len(re.findall(r"^\| `", made, re.MULTILINE)) == len(rows)
    figures = {figure.bench_row: figure.milliseconds for figure in tables.published(ROOT).operators if figure.bench_row}
    paired = figures.keys() & rows.keys()
    assert "decode-e4m3-G6-D256-page800-B1-256K" in paired
    for name in paired:
        (line,) = re.findall(rf"^\| `{re.escape(name)}` \|(.*)\|$", made, re.MULTILINE)
        cells = [cell.strip() for cell in line.split("|")]
        assert (cells[0], cells[-1]) == (f"{rows[name]['estimated_ms']:.4f} ms", f"{figures[name]} ms")


def test_a_row_is_published_once_at_most() -> None:
    named = [figure.bench_row for figure in tables.published(ROOT).operators if figure.bench_row]
    assert len(named) == len(set(named))
    operators = {entry.bench_row: entry.operator for entry in tables.published(ROOT).operators if entry.bench_row}
    assert all(row.startswith(f"{operator}-") for row, operator in operators.items())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the evidence alone, nothing built."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / tables.README, tmp_path)
    for name in sums.read_index(ROOT / "results")[0]:
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    shutil.copy(ROOT / "results" / sums.INDEX, tmp_path / "results")
    return tmp_path


def test_where_nothing_is_built_the_label_stays(root: Path) -> None:
    path = root / tables.README
    assert tables.render(root, tables.README) == path.read_text()
    aged = path.read_text().replace("| same kernel |", "| older |")
    path.write_text(aged)
    assert tables.render(root, tables.README) == aged


def test_where_nothing_is_built_each_run_keeps_its_label(root: Path) -> None:
    path = root / tables.README
    text = path.read_text().replace("| older |", "| same kernel |")
    mixed = re.sub(r"(\| memory checks \|.*\|) same kernel \|", r"\1 older |", text)
    assert mixed.count("| older |") == 1 and "| same kernel |" in mixed
    path.write_text(mixed)
    assert tables.render(root, tables.README) == mixed


def test_a_changed_figure_is_stale(root: Path) -> None:
    path = root / tables.README
    path.write_text(re.sub(r"\d+ passed", "9999 passed", path.read_text()))
    assert tables.render(root, tables.README) != path.read_text()


def test_estimates_of_two_machines_do_not_share_a_table(root: Path) -> None:
    path = tables.latest(root, "bench", gpu=False).folder / "benchmark.json"
    text = path.read_text()
    path.write_text(text.replace('"estimated_clock_mhz": 1380', '"estimated_clock_mhz": 1530', 1))
    assert path.read_text() != text
    with pytest.raises(EvidenceError, match="rest on 2 machines, want one"):
        tables.estimates(root)


def test_a_changed_estimate_is_stale(root: Path) -> None:
    path = root / tables.RESULTS
    path.write_text(re.sub(r"(page800-B1-256K` \| )[\d.]+", r"\g<1>0.0100", path.read_text()))
    assert tables.render(root, tables.RESULTS) != path.read_text()


def test_an_unknown_block_and_a_figure_without_source_are_refused(root: Path) -> None:
    path = root / tables.README
    path.write_text(path.read_text().replace("generated: results", "generated: nobody-knows"))
    with pytest.raises(EvidenceError, match="nothing generates the block 'nobody-knows'"):
        tables.render(root, tables.README)
    published = json.loads((root / tables.PUBLISHED).read_text())
    published["roofs"][0]["source"] = "hearsay"
    (root / tables.PUBLISHED).write_text(json.dumps(published))
    with pytest.raises(EvidenceError, match="'hearsay' is no source"):
        tables.published(root)


def test_an_index_without_runs_has_no_results(root: Path) -> None:
    (root / "results" / sums.INDEX).write_text("")
    with pytest.raises(EvidenceError, match="names no passing bench run on a GPU"):
        tables.latest(root, "bench")
