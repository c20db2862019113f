"""Evidence: what a session's result is, what ran when it was made, and which shared objects it speaks of.

A session (build, test, memcheck, bench) writes a run folder; :mod:`~sm70_kernels.evidence.runs.schema` is its format,
:mod:`~sm70_kernels.evidence.sessions.session` the command that nox calls. It needs neither nox nor git:
``python -m sm70_kernels.evidence test -- tests/ops``.
"""
