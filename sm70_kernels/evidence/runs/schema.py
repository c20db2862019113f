"""The format of a run folder's JSON files, as types. Reading is strict: an unknown or missing field is an error.

Paths in these records are relative to the checkout, or begin with ``$ENVIRONMENT/`` (the Python environment) or are
bare file names. No record holds a host name, a user name or an absolute path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import msgspec

SCHEMA_VERSION = 1

MANIFEST = "manifest.json"
ENVIRONMENT = "environment.json"
JUNIT = "junit.xml"
SKIPS = "skips.json"
BENCHMARK = "benchmark.json"
BUILD_MANIFEST = "build-manifest.json"
SUMS = "SHA256SUMS"

#: ``not_run``: the machine lacks what the session needs; ``superseded``: a kept run that no longer counts.
Status = Literal["pass", "fail", "not_run", "superseded"]
SessionName = Literal["build", "test", "memcheck", "bench"]
Label = Literal["validated", "unvalidated"]


class EvidenceError(RuntimeError):
    """A record can't be read or trusted: the message says what was found, what is wanted and what to do."""


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Base of every record."""


class FileHash(Record, kw_only=True, frozen=True):
    """A file and the SHA-256 of its bytes; the hash is None when the file could not be read any more."""

    path: str
    sha256: str | None


class Gpu(Record, kw_only=True, frozen=True):
    """A CUDA device. Values that the driver does not report are None."""

    name: str
    capability: str
    sm_count: int
    memory_bytes: int | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    power_limit_w: float | None = None


class Environment(Record, kw_only=True, frozen=True):
    """What a process ran with."""

    schema_version: int = SCHEMA_VERSION
    driver: str | None
    gpus: list[Gpu]
    gpu_reason: str | None
    """Why ``gpus`` is empty or a value of the driver is missing."""
    versions: dict[str, str | None]
    """Of the process: python, torch, torch_cuda and the locked distributions beside it."""
    build_versions: dict[str, str]
    """Of the build, from the build manifest: gcc, nvrtc, ptxas, torch, ..."""
    lock_sha256: str | None
    variables: dict[str, str]
    loaded: list[FileHash]
    """Shared objects that were mapped in the process, hashed after loading."""
    installed: list[FileHash]
    """What the build manifest says was installed."""


class Library(Record, kw_only=True, frozen=True):
    """An operator's DSO in this run."""

    operator: str
    path: str
    sha256: str | None
    """Of the mapped file when a process of the run loaded it, else of the file on disk."""
    cubin_sha256: str
    ptx_sha256: str
    machine_code_sha256: str | None = None
    """Of the cubin's machine code without line tables; None in runs older than this field."""
    ptx_instructions_sha256: str | None = None
    """Of the PTX without line tables and comments; None likewise."""
    capability_revision: int | None
    mapped: bool
    launches: dict[str, dict[str, int]]
    """Kernel -> image that ran (``cubin``, ``ptx``, ``emulated``) -> count."""

    def images(self) -> list[str]:
        """Images of which at least one launch ran."""
        return sorted({image for counts in self.launches.values() for image, count in counts.items() if count})


class Counts(Record, kw_only=True, frozen=True):
    """Tests of a run by outcome; ``executed`` are those whose body ran to a verdict."""

    executed: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0


class Skip(Record, kw_only=True, frozen=True):
    """A test that did not run, and why."""

    test: str
    reason: str


class Sweep(Record, kw_only=True, frozen=True):
    """One memory checker, a tool of compute-sanitizer or the emulator: its tests, and the canary it had to catch."""

    tool: str
    passed: bool
    reason: str
    executed: int
    log: str
    canary_log: str


class Validation(Record, kw_only=True, frozen=True):
    """Whether a passing test run has launched kernels of exactly this DSO."""

    label: Label
    run: str | None
    """Name of the test run that speaks for the DSO."""
    reason: str


class Observation(Record, kw_only=True, frozen=True):
    """What one pytest process reports to the session at its end. It goes into the run's other files."""

    environment: Environment
    libraries: list[Library]
    mismatches: list[str]
    counts: Counts
    skips: list[Skip]


class Manifest(Record, kw_only=True, frozen=True):
    """manifest.json: the run as a whole."""

    schema_version: int = SCHEMA_VERSION
    session: SessionName
    status: Status
    reason: str
    commit: str | None
    dirty: bool | None
    build_commit: str | None
    command: list[str]
    start: str
    end: str | None
    """Both in UTC, ISO 8601. ``end`` is None while the session runs and after it was killed."""
    libraries: list[Library] = []
    counts: Counts | None = None
    narrowed: bool = False
    """Whether the command line left out operator tests or rows: such a run validates nothing. ``tests/ops`` alone is
    whole in this sense, since it holds every operator test."""
    sweeps: list[Sweep] = []
    sanitizer: str | None = None
    """What checked memory: the compute-sanitizer that was found, or the emulator and what it checks."""
    validation: dict[str, Validation] = {}
    """Operator -> label, for memcheck and bench."""


RecordType = TypeVar("RecordType")


def encode(record: object) -> bytes:
    """JSON with one line per value; keys of mappings are sorted, fields keep the schema's order."""
    return msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=1) + b"\n"


def write(path: Path, record: object) -> None:
    """Write a record so that a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(encode(record))
    temporary.replace(path)


def read(path: Path, kind: type[RecordType]) -> RecordType:
    """Read a record. Raises EvidenceError naming the file when it is missing or is not of this schema."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise EvidenceError(f"{path.name} of {path.parent.name} can't be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise EvidenceError(
            f"{path.name} of {path.parent.name} is no {kind.__name__} of schema version {SCHEMA_VERSION}: {error}"
        ) from error
