"""Builds the container image of the checked-out commit with docker, podman or buildah, and tries it out.

``nox -s image -- [--engine buildah] [--base-image NAME] [--tag NAME] [--run "build test"]``. Only the standard library
is needed. buildah builds without a daemon and, with BUILDAH_ISOLATION=chroot, inside a container; STORAGE_DRIVER and
the other variables of the engines are theirs to read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Engine -> a command that succeeds where the engine can build; docker's needs its daemon.
ENGINES = {"docker": ["docker", "info"], "podman": ["podman", "info"], "buildah": ["buildah", "images"]}
BASE_IMAGE = "docker.io/library/python:3.12-slim-bookworm"
INSIDE = "/opt/sm70-kernels"
#: A user that no image knows, as `docker run --user` may name.
STRANGER = "12345:12345"


class ImageError(RuntimeError):
    """The image can't be built or does not work: the message says what was found, what is wanted and what to do."""


def output(command: Sequence[str], cwd: Path = ROOT) -> str:
    """What a command prints, stripped; empty when it fails."""
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def find_engine(asked: str | None) -> str:
    """The engine asked for, else the first that works. Raises ImageError when none does."""
    seen = []
    for name in [asked] if asked else ENGINES:
        if shutil.which(name) is None:
            seen.append(f"{name} (not installed)")
            continue
        done = subprocess.run(ENGINES[name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return name
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        seen.append(f"{name} (installed, but: {last})")
    raise ImageError(
        f"no container engine: tried {', '.join(seen)}; want one of {', '.join(ENGINES)}. Start the daemon, or install "
        "buildah, which needs none (Debian 12, Ubuntu 24.04: apt-get install buildah; docker/README.md)"
    )


def run(command: Sequence[str]) -> None:
    """Run a command with its output shown. Raises ImageError when it fails."""
    print(f"$ {shlex.join(command)}", flush=True)
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise ImageError(f"{shlex.join(command[:3])} ...: exit code {code}")


def context(folder: Path) -> str:
    """A clean copy of the commit, nothing that git does not track, as build context. Returns the commit."""
    commit = output(["git", "rev-parse", "HEAD"])
    if not commit:
        raise ImageError(f"{ROOT.name} is no git checkout: the image is built from a commit. Clone the repository")
    changed = output(["git", "status", "--porcelain", "--", ".", ":!results"])
    if changed:
        print(
            f"image: of commit {commit[:7]}; {len(changed.splitlines())} changed or new files are not in it", flush=True
        )
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(folder)], check=True)
    if output(["git", "rev-parse", "HEAD"], folder) != commit:
        raise ImageError("HEAD changed while it was copied. Start again")
    return commit


def source() -> str:
    """Public address of the repository for the image's label, without credentials; empty when it has none."""
    in_ci = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return "/".join(in_ci) if all(in_ci) else ""  # type: ignore[arg-type]


def base_digest(engine: str, base_image: str) -> str:
    """Digest of the base as the registry has it; empty for a base that was made here."""
    if base_image.startswith("localhost/"):
        return ""
    run([engine, "pull", base_image])
    shown = output(
        [engine, *(["inspect", "--type", "image"] if engine == "buildah" else ["image", "inspect"]), base_image]
    )
    details = json.loads(shown or "[]")
    details = details[0] if isinstance(details, list) and details else details
    if not details:
        return ""
    digests = details.get("RepoDigests") or [details.get("FromImageDigest", "")]
    return str(digests[0]).rpartition("@")[2]


def build_command(engine: str, options: argparse.Namespace, folder: Path, commit: str, digest: str) -> list[str]:
    """The engine's build command."""
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    arguments = {
        "BASE_IMAGE": options.base_image,
        "BASE_DIGEST": digest,
        "COMMIT": commit,
        "VERSION": version,
        "SOURCE": source(),
    }
    command = [engine, "build", "--tag", options.tag, "--file", str(folder / "docker/Dockerfile")]
    for name, value in arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    if options.ca_bundle:
        command += ["--secret", f"id=ca-bundle,src={options.ca_bundle}"]
    return [*command, str(folder)]


class Container:
    """Runs commands in the image; buildah has no `run IMAGE`, so it gets a container that is removed at the end."""

    def __init__(self, engine: str, tag: str) -> None:
        """Start from the image ``tag``."""
        self.engine, self.tag, self.name = engine, tag, ""
        if engine == "buildah":
            self.name = output(["buildah", "from", "--pull-never", tag])
            if not self.name:
                raise ImageError(f"buildah can't make a container from {tag}")

    def command(self, arguments: Sequence[str], results: Path, user: str | None = None, entry: str = "") -> list[str]:
        """Command line that starts the entry point, or the program ``entry``, with arguments."""
        as_user = ["--user", user] if user else []
        mount = ["--volume", f"{results}:{INSIDE}/results"]
        if self.engine == "buildah":
            entry = entry or f"{INSIDE}/docker/entrypoint.sh"  # buildah run does not read ENTRYPOINT
            return ["buildah", "run", *as_user, *mount, self.name, "--", entry, *arguments]
        as_entry = ["--entrypoint", entry] if entry else []
        return [self.engine, "run", "--rm", *as_user, *mount, *as_entry, self.tag, *arguments]

    def close(self) -> None:
        """Remove what buildah needed."""
        if self.name:
            subprocess.run(["buildah", "rm", self.name], check=False, capture_output=True)


def smoke(container: Container, arguments: Sequence[str], folder: Path) -> None:
    """Doctor; the image's DSOs; sessions as its own user and as one that it does not know, with a mounted results/."""
    results = folder / "results"
    results.mkdir()
    results.chmod(0o777)
    run(container.command(["doctor"], results))
    show = "sha256sum sm70_kernels/lib/*.so; grep -E '\"(commit|dirty)\"' sm70_kernels/lib/manifest.json"
    lines = output(container.command(["-c", show], results, entry="/bin/bash")).splitlines()
    print("\n".join(lines))
    if not any('"dirty": false' in line for line in lines):
        raise ImageError("the DSOs in the image are not those of a clean commit. Is a tracked file in .dockerignore?")
    for digest, path in (line.split() for line in lines if ".so" in line):
        if (ROOT / path).is_file():
            same = digest == hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
            print(f"{path}: {'the same' if same else 'ANOTHER'} file as in this checkout")
    run(container.command(["test", "--", "tests/unit"], results, user=STRANGER))
    if arguments:
        run(container.command(arguments, results))
    recorded = sorted(path.name for path in results.iterdir())
    if not recorded:
        raise ImageError("the sessions wrote nothing to the mounted results/")
    print(f"recorded in the mounted results/: {', '.join(recorded)}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(ENGINES), help="the first that works by default")
    parser.add_argument("--base-image", default=BASE_IMAGE)
    parser.add_argument("--tag", default="localhost/sm70-kernels:latest")
    parser.add_argument("--ca-bundle", default=os.environ.get("SSL_CERT_FILE"), help="certificates for downloads")
    parser.add_argument("--no-build", action="store_true", help="only try out the image that --tag names")
    parser.add_argument("--run", default="", help="sessions to run in the image as well, such as 'build test'")
    options = parser.parse_args()
    try:
        engine = find_engine(options.engine)
        with tempfile.TemporaryDirectory(prefix="sm70-image-", ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary)
            if not options.no_build:
                commit = context(folder / "context")
                digest = base_digest(engine, options.base_image)
                run(build_command(engine, options, folder / "context", commit, digest))
            container = Container(engine, options.tag)
            try:
                smoke(container, shlex.split(options.run), folder)
            finally:
                container.close()
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
