"""Other people's accountants: their events as our mechanisms, and our accountant behind their interfaces.

``events`` translates to and from dp-accounting's events. ``google``, ``opacus`` and ``flower`` are accountants for code
that uses dp-accounting, Opacus and Flower; each needs the library of its name.
"""

from fedamp.accounting.interop.events import from_dp_accounting, to_dp_accounting

__all__ = ["from_dp_accounting", "to_dp_accounting"]
