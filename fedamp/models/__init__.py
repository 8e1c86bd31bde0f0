"""Torch models without batch norm, and how each of them can be split (importing this package imports no torch)."""
