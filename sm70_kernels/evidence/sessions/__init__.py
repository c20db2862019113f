"""Sessions: the processes that nox starts, their selection of tests and the record of their results."""
