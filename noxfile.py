"""The sessions: build, test, memcheck, bench, lint, reproduce, dist, image. Start them with scripts/nox.

scripts/nox needs nothing installed. The sessions share one environment, so that torch is installed once. Arguments
after ``--`` go to pytest; with ``--require-gpu`` a test that is not run for lack of a GPU is a failure.
"""

import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["build", "test"]

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv")
PYTHON = str(ENVIRONMENT / "bin" / "python")
UV = str(ENVIRONMENT / "bin" / "uv")
BAKED = os.environ.get("SM70_KERNELS_BAKED_ENVIRONMENT") == "1"


def sync(session: nox.Session, *groups: str) -> None:
    """Install the locked packages of these groups; what other sessions installed stays."""
    if BAKED:
        return
    options = [option for group in groups for option in ("--group", group)]
    # An interrupted installation leaves packages that look complete and are not, so everything is installed again.
    interrupted = ENVIRONMENT / ".sm70-kernels-syncing"
    if interrupted.exists():
        options.append("--reinstall")
    interrupted.touch()
    session.run(
        *(UV, "sync", "--locked", "--inexact", "--no-install-project", *options),
        env={"UV_PROJECT_ENVIRONMENT": str(ENVIRONMENT), "UV_PYTHON_DOWNLOADS": "never"},
    )
    interrupted.unlink()


def recorded(session: nox.Session, name: str) -> None:
    """Run a session's body, which writes results/<UTC>-<commit>-<session>/."""
    session.run(PYTHON, "-m", "sm70_kernels.evidence", name, *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build every extension from source and make the package importable in the environment."""
    sync(session, "session", "build")
    session.run(PYTHON, "-m", "sm70_kernels.evidence", "build")
    if not BAKED and not (ENVIRONMENT / "bin" / "sm70-kernels").exists():
        session.run(UV, "pip", "install", "--python", PYTHON, "--no-deps", "--no-build-isolation", "--editable", ".")


@nox.session
def test(session: nox.Session) -> None:
    """Test what was built."""
    sync(session, "session", "build", "test", "release", "report")
    recorded(session, "test")


@nox.session
def memcheck(session: nox.Session) -> None:
    """Run marked tests under compute-sanitizer's four tools, or without a GPU all under the emulator's checkers."""
    sync(session, "session", "test")
    recorded(session, "memcheck")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what was built."""
    sync(session, "session", "test")
    recorded(session, "bench")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types and spelling."""
    sync(session, "session", "build", "test", "lint")
    # The hooks call the environment's tools by name.
    path = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
    session.run(PYTHON, "-m", "pre_commit", "run", "--all-files", *session.posargs, env={"PATH": path})


@nox.session
def reproduce(session: nox.Session) -> None:
    """Build the commit in two folders by two environments and compare every byte (--dirty: the working tree)."""
    if BAKED:
        session.error("this needs a second environment, which an image can't make: run it in a checkout")
    sync(session, "session", "build")
    session.run(PYTHON, "-m", "sm70_kernels.release.reproduce", *session.posargs)


@nox.session
def dist(session: nox.Session) -> None:
    """Write a release into dist/ and try its wheel in a new environment (--dirty: of the working tree)."""
    if BAKED:
        session.error("this needs a new environment, which an image can't make: run it in a checkout")
    sync(session, "session", "build")
    session.run(PYTHON, "-m", "sm70_kernels.release.dist", "--smoke", *session.posargs)


@nox.session
def image(session: nox.Session) -> None:
    """Build the container image of this commit with docker, podman or buildah, and try it out."""
    if BAKED:
        session.error("this is the image: build it in a checkout")
    session.run(PYTHON, "scripts/image.py", *session.posargs)
