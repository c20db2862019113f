"""Run folders: schema, record, samples and tables."""
