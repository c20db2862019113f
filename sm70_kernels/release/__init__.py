"""What leaves the checkout: the proof that a commit builds to the same bytes, and the files of a release.

``python -m sm70_kernels.release.reproduce`` and ``python -m sm70_kernels.release.dist``; the sessions of the same names
call them. Not part of ``sm70_kernels.build``, so that a change here makes no built library stale.
"""
