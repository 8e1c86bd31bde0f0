"""Draw cohorts of a fixed size, or of a largest size.

The idea is two schemes of the key ``check_in`` in :mod:`~fedamp.extensions.batches.check_in`. ``batches`` draws without
replacement, and :class:`fedamp.accounting.WithoutReplacement` charges it. ``truncated-poisson`` cuts large cohorts of
Poisson sampling, and charges what that reveals. Both break the fact that units check in independently, so keys that
need it, such as ``privacy.canaries``, are refused beside them. docs/strategies.md compares the schemes.
"""

from fedamp.extension import Extension

_HERE = "fedamp.extensions.batches.check_in"

extension = Extension("batches", choices={"check_in": (f"{_HERE}:BatchesCheckIn", f"{_HERE}:TruncatedPoissonCheckIn")})
