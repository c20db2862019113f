"""``python -m sm70_kernels.evidence``: run a session and record its result (:mod:`.sessions.session`)."""

from __future__ import annotations

from sm70_kernels.evidence.sessions.session import main

if __name__ == "__main__":
    main()
