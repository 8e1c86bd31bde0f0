"""The Rényi evaluator's moments of both directions, apart."""

from fedamp.accounting.renyi import moments_of


def raw(mechanism, highest):
    """log E[X^a], a = 0..highest."""
    return moments_of(mechanism).raw(highest)


def negative(mechanism, highest):
    """log E[X^-b], b = 0..highest-1."""
    return moments_of(mechanism).negative(highest)
