"""What nox -s reproduce compares, how it says so, and what it refuses. The session itself is a step of CI."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm70_kernels.build import settings
from sm70_kernels.release import differences, reproduce

ROOT = Path(__file__).resolve().parents[2]


def fake_build(checkout: Path) -> Path:
    """A checkout in which every compared pattern finds one file."""
    for pattern in reproduce.COMPARED:
        path = checkout / pattern.replace("*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pattern)
    return checkout


def test_every_kind_of_file_is_compared(tmp_path: Path) -> None:
    first, second = (fake_build(tmp_path / name) for name in ("a", "b"))
    rows = reproduce.compare(first, second)
    assert len(rows) == len(reproduce.COMPARED) and all(row.same for row in rows)
    assert reproduce.table(rows).count("SAME") == len(rows)

    for pattern in reproduce.COMPARED:
        changed = second / pattern.replace("*", "x")
        changed.write_text(pattern[:-1] + "?")
        different = [row for row in reproduce.compare(first, second) if not row.same]
        assert [row.path for row in different] == [str(changed.relative_to(second))]
        text = reproduce.table(different)
        assert text.startswith("DIFFERENT")
        assert str(different[0].first) in text and str(different[0].second) in text
        changed.unlink()
        assert "missing" in reproduce.table(reproduce.compare(first, second))
        changed.write_text(pattern)

    (first / "dist" / "x").unlink()
    (second / "dist" / "x").unlink()
    with pytest.raises(settings.BuildError, match=r"got no file dist/\*"):
        reproduce.compare(first, second)


def test_a_difference_is_found_in_section_line_and_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences.shutil, "which", lambda name: None if name == "diffoscope" else f"/usr/bin/{name}")
    library = settings.PACKAGE / settings.LIBRARY_FOLDER / "libsm70_kv_cache.so"
    content = bytearray(library.read_bytes())
    offset = content.index(b"sm70_kernels capability revision")
    content[offset] ^= 1
    changed = tmp_path / library.name
    changed.write_bytes(content)
    assert differences.describe(library, changed).startswith(f"section .rodata, offset {offset:#x}: ")

    texts = tmp_path / "a.ptx", tmp_path / "b.ptx"
    for path, line in zip(texts, ("ld.global", "st.global"), strict=True):
        path.write_text(f".version 8.7\n{line}\n")
    assert differences.describe(*texts).startswith("line 2, offset 0xd: ")

    wheels = tmp_path / "a.whl", tmp_path / "b.whl"
    for path, text in zip(wheels, ("one", "ont"), strict=True):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("same", "same")
            archive.writestr("other", text)
    assert differences.describe(*wheels) == "member other first differs at offset 2"
    damaged = bytearray(wheels[0].read_bytes())
    damaged[damaged.index(b"one")] ^= 1  # its check sum does not fit any more
    wheels[1].write_bytes(damaged)
    assert differences.describe(*wheels).startswith("line 1, offset 0x")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository in the place of this one."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("/dist/\n")
    (root / "file").write_text("committed\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(reproduce, "ROOT", root)
    return root


def test_checkouts_are_of_the_commit_or_of_the_working_tree(checkout: Path, tmp_path: Path) -> None:
    reproduce.require_clean(dirty=False)
    (checkout / "file").write_text("changed\n")
    (checkout / "new").write_text("new\n")
    (checkout / "dist").mkdir()
    (checkout / "dist" / "ignored").touch()
    with pytest.raises(settings.BuildError, match=r"want none.*add '-- --dirty'"):
        reproduce.require_clean(dirty=False)
    reproduce.require_clean(dirty=True)

    reproduce.check_out(tmp_path / "clean", dirty=False)
    assert (tmp_path / "clean" / "file").read_text() == "committed\n"
    assert not (tmp_path / "clean" / "new").exists()
    reproduce.check_out(tmp_path / "dirty", dirty=True)
    assert (tmp_path / "dirty" / "file").read_text() == "changed\n"
    assert {path.name for path in (tmp_path / "dirty").iterdir()} == {".gitignore", "file", "new"}


def test_without_git_there_is_nothing_to_reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    with pytest.raises(settings.BuildError, match="got no git commit, want a checkout"):
        reproduce.require_clean(dirty=True)


def test_work_folders_are_removed_even_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(work: Path, *, dirty: bool) -> tuple[Path, Path]:
        (work / "something").touch()
        raise settings.BuildError("on purpose")

    monkeypatch.setattr(reproduce.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(reproduce, "build_twice", fail)
    monkeypatch.setattr(sys, "argv", ["reproduce", "--dirty"])
    monkeypatch.setattr(reproduce, "require_clean", lambda dirty: None)
    assert reproduce.main() == 1
    assert capsys.readouterr().err == "reproduce: on purpose\n"
    assert not list(tmp_path.iterdir())
