"""Flower strategies whose privacy is amplified and accounted for; usable in a Flower app of your own."""

from fedamp.strategies.private import PrivateStrategy

__all__ = ["PrivateStrategy"]
