"""Flower strategies whose privacy is amplified and accounted for; usable in a custom Flower app."""

from fedamp.strategies.private import PrivateStrategy

__all__ = ["PrivateStrategy"]
