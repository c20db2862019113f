"""Evidence holds no absolute path, no user and no host."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm70_kernels.evidence.machine import places

HERE = places.Places(
    root=Path("/home/ada/checkout"),
    environment=Path("/home/ada/checkout/.venv"),
    base_python=Path("/usr"),
    home=Path("/home/ada"),
)


@pytest.mark.parametrize(
    "path,shown",
    [
        ("/home/ada/checkout/csrc/a.cu", "csrc/a.cu"),
        ("/home/ada/checkout/.venv/lib/libx.so", "$ENVIRONMENT/lib/libx.so"),
        ("/usr/lib/libc.so.6", "libc.so.6"),
        ("/home/ada/secret/libx.so", "libx.so"),
    ],
)
def test_path(path: str, shown: str) -> None:
    assert HERE.path(path) == shown


@pytest.mark.parametrize(
    "text,shown",
    [
        ("at /home/ada/checkout/tests/a.py:3", "at tests/a.py:3"),
        ("in /home/ada/checkout", "in ."),
        ("in /home/ada/checkout2/x", "in ~/checkout2/x"),
        ("/home/ada/checkout/.venv/bin/python", "$ENVIRONMENT/bin/python"),
        ("/tmp/pytest-of-ada/pytest-0/x", "/tmp/pytest-of-user/pytest-0/x"),
        ("=========     at 0x1f0 in /home/ada/.cache/x.cu", "=========     at 0x1f0 in ~/.cache/x.cu"),
        ("PTX for sm_70", "PTX for sm_70"),
    ],
)
def test_text(text: str, shown: str) -> None:
    assert HERE.text(text) == shown


def test_the_home_of_a_container_user_without_an_account_replaces_nothing() -> None:
    nobody = places.Places(HERE.root, HERE.environment, HERE.base_python, Path("/"))
    assert nobody.text("1/2 of /data") == "1/2 of /data"


def test_command() -> None:
    words = [
        "/home/ada/checkout/.venv/bin/python",
        "-m",
        "pytest",
        "--junitxml=/home/ada/checkout/r/junit.xml",
        "/mnt/x",
    ]
    assert HERE.command(words) == ["$ENVIRONMENT/bin/python", "-m", "pytest", "--junitxml=r/junit.xml", "x"]


def test_junit(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text('<testsuite name="pytest" hostname="node17" time="1"><testcase file="/home/ada/checkout/a.py"/>')
    places.scrub_junit(path, HERE)
    assert path.read_text() == '<testsuite name="pytest" time="1"><testcase file="a.py"/>'
