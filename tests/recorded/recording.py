"""What was recorded on a GPU, and how it is compared.

A group of cases is one JSON file, which names the device, the date, and for each case hashes of the kernel's PTX, of
the inputs and of the outputs, and one npz file with those outputs that are compared within a bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.recorded.inputs import canonical, digest

FOLDER = Path(__file__).parent
#: Outputs of at most so many bytes are kept whole, so that a difference can be shown.
SMALL_BYTES = 1024
AGAIN = "record again on a GPU: scripts/record_on_gpu.py"


@dataclass(frozen=True)
class Exact:
    """The same bits, any NaN for any NaN."""

    def difference(self, recorded: np.ndarray, emulated: np.ndarray) -> str | None:
        """What differs, in words, or nothing."""
        different = np.flatnonzero(bits(canonical(recorded)) != bits(canonical(emulated)))
        return describe(different, recorded, emulated)


@dataclass(frozen=True)
class Ulps:
    """Within so many units in the last place of each other, or an absolute distance where that is more."""

    units: float
    absolute: float = 0.0

    def difference(self, recorded: np.ndarray, emulated: np.ndarray) -> str | None:
        """What differs, in words, or nothing."""
        with np.errstate(invalid="ignore"):
            largest = np.fmax(np.abs(recorded), np.abs(emulated))
            distance = np.abs(recorded.astype(np.float64) - emulated.astype(np.float64))
            unit = np.spacing(np.where(np.isfinite(largest), largest, 1)).astype(np.float64)
            close = distance <= np.maximum(self.units * unit, self.absolute)
        same = (recorded == emulated) | (np.isnan(recorded) & np.isnan(emulated))
        return describe(np.flatnonzero(~(close | same)), recorded, emulated)


@dataclass(frozen=True)
class Near:
    """Both within a bound of the exact result, element by element."""

    exact: Any
    bound: Any

    def difference(self, recorded: np.ndarray, emulated: np.ndarray) -> str | None:
        """What differs, in words, or nothing."""
        for values, whose in ((recorded, "the GPU's"), (emulated, "the emulator's")):
            error = np.abs(values.astype(np.float64) - self.exact)
            if not (error <= self.bound).all():
                return f"{whose} result is {np.max(error / self.bound):.3g} times the bound from the exact one"
        return None


Rule = Exact | Ulps | Near


def bits(array: np.ndarray) -> np.ndarray:
    """The elements as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def describe(where: np.ndarray, recorded: np.ndarray, emulated: np.ndarray) -> str | None:
    """Number and first of the differing elements."""
    if not where.size:
        return None
    first = where[0]
    return (
        f"{where.size} of {recorded.size} differ, the first at {first}: "
        f"GPU {recorded.reshape(-1)[first]!r}, emulator {emulated.reshape(-1)[first]!r}"
    )


def write(group: str, folder: Path, facts: dict[str, Any], cases: dict[str, dict[str, Any]]) -> None:
    """Write a group. A case is its entry for the JSON file, but with arrays as ``outputs`` and, as ``raw``, the names
    of those to keep whole."""
    entries, arrays = {}, {}
    for name, case in cases.items():
        outputs, raw = case["outputs"], case["raw"]
        hashes = {output: digest([canonical(array)]) for output, array in outputs.items()}
        entries[name] = {key: value for key, value in case.items() if key != "raw"} | {"outputs": hashes}
        kept = [output for output, array in outputs.items() if output in raw or array.nbytes <= SMALL_BYTES]
        arrays |= {f"{name}/{output}": outputs[output] for output in kept}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{group}.json").write_text(json.dumps(facts | {"cases": entries}, indent=1) + "\n")
    np.savez_compressed(folder / f"{group}.npz", **arrays)


class Recording:
    """A recorded group."""

    def __init__(self, group: str, folder: Path = FOLDER) -> None:
        self.facts = json.loads((folder / f"{group}.json").read_text())
        with np.load(folder / f"{group}.npz") as arrays:
            self._arrays = dict(arrays)

    def case(self, name: str, *, ptx: str, inputs: str) -> dict[str, str]:
        """Hashes of a case's outputs, of which the recording must be about this PTX and these inputs."""
        entry = self.facts["cases"].get(name)
        assert entry, f"{name} is not in the recording: {AGAIN}"
        assert entry["ptx"] == ptx, f"{name} was recorded from another PTX than is built now: {AGAIN}"
        assert entry["inputs"] == inputs, f"{name} was recorded with other inputs: {AGAIN}"
        return dict(entry["outputs"])

    def array(self, case: str, output: str) -> np.ndarray | None:
        """An output that was kept whole."""
        return self._arrays.get(f"{case}/{output}")

    def problems(
        self, case: str, hashes: dict[str, str], outputs: dict[str, np.ndarray], rules: dict[str, Rule]
    ) -> str:
        """What of the outputs differs from the recording: nothing, if they agree. Outputs without a rule are exact."""
        found = []
        assert hashes.keys() == outputs.keys(), f"{case} was recorded with other outputs: {AGAIN}"
        for name, output in outputs.items():
            recorded, rule = self.array(case, name), rules.get(name, Exact())
            if recorded is not None:
                problem = rule.difference(recorded, output)
            else:
                assert isinstance(rule, Exact), f"{case}, {name} was recorded as a hash: {AGAIN}"
                same = digest([canonical(output)]) == hashes[name]
                problem = None if same else "other bits (the whole output is in what 'record --raw' keeps)"
            if problem:
                found.append(f"{name}: {problem}")
        return "\n".join(found)
