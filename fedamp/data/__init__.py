"""Federated data sets: loading, partitioning, and reading the records of a few clients at a time."""
