"""Draw batches of a fixed size: every round has as many units, drawn without replacement.

The idea is one scheme of the key ``check_in`` (``scheme: batches``), :mod:`~fedamp.extensions.batches.check_in`,
charged by :class:`fedamp.accounting.WithoutReplacement`. It breaks the fact that units check in independently, so keys
that need it, such as ``privacy.canaries``, are refused beside it. docs/strategies.md compares the schemes.
"""

from fedamp.extension import Extension

extension = Extension("batches", choices={"check_in": ("fedamp.extensions.batches.check_in:BatchesCheckIn",)})
