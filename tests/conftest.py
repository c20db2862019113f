"""Loads the evidence plugin, so that a plain ``pytest`` checks and reports as the sessions do."""

pytest_plugins = ["sm70_kernels.evidence.pytest_plugin"]
