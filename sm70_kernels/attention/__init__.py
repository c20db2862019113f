"""Attention across operators: merging the partial results of separate calls (planning comes here)."""
