"""The lines and kernels of the conformance corpus as cases of a recording.

Nothing here needs torch, a GPU or the emulator, but a compiler for `sources`.
"""

from __future__ import annotations

from tests.corpus import kernels, lines, runs
from tests.recorded.kernel_cases import Case, Check

#: Files of PTX.
SOURCES = [*runs.line_lists(), runs.KERNELS]


def all_cases() -> dict[str, Case]:
    """Every case, by name. Of each line a few threads are kept whole, of all threads the hash."""
    found = {}
    for source, listed in runs.line_lists().items():
        for name, part in lines.kernels(listed).items():
            checks = {"results": Check(1), "some": Check(1, (slice(None), slice(None, None, lines.THREADS // 4)))}
            found[name] = Case(name, source, name, 1, lines.THREADS, lines.arguments(part), (1,), checks)
    for name in kernels.CORPUS.launches:
        launch = kernels.launch(name)
        if launch.fails:  # a trap spoils the context
            continue
        checks = {f"output_{place}": Check(argument) for place, argument in enumerate(launch.written)}
        found[name] = Case(
            name, runs.KERNELS, name, launch.blocks, launch.threads, launch.arguments(), launch.written, checks
        )
    return found
