"""Attention across operators: merging the results of separate calls."""
