"""Draw cohorts of a fixed size, or of a largest size.

The idea is two schemes of the key ``check_in`` in :mod:`~fedamp.extensions.batches.check_in`. ``batches`` draws without
replacement, and ``truncated-poisson`` cuts large cohorts of Poisson sampling.
:mod:`~fedamp.extensions.batches.mechanisms` charges both, also what the cut reveals, and
:mod:`~fedamp.extensions.batches.game` narrows the bracket of the former. Both break the fact that units check in
independently, so keys that need it, such as ``privacy.canaries``, are refused beside them. docs/strategies.md compares
the schemes.
"""

from fedamp.extension import Extension

_HERE = "fedamp.extensions.batches"

extension = Extension(
    "batches",
    choices={"check_in": (f"{_HERE}.check_in:BatchesCheckIn", f"{_HERE}.check_in:TruncatedPoissonCheckIn")},
    accounting={name: f"{_HERE}.mechanisms:{name}" for name in ("TruncatedPoisson", "WithoutReplacement")},
)
