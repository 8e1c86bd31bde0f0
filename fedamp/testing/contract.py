"""The base of all contracts: which tests there are, and the note that all of them have passed.

The note is a file in the cache (:mod:`fedamp.federation.contracts`). A run with a scheme of another package reads it,
and charges the scheme without amplification where it is missing.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from fedamp.federation.contracts import note_pass

UNLIKELY = 1e-4
"""Probability with which a right scheme fails a statistical test; the seeds are fixed, so it fails always or never."""


class Contract:
    """Base of all contracts. A subclass that names what it tests is a suite for pytest.

    The class that :meth:`subject` gives is noted as passed once all tests of the suite have passed in one process. So a
    selection of tests (``-k``) notes nothing.
    """

    _passed: ClassVar[set[str]]

    def __init_subclass__(cls) -> None:
        """Wrap each test that the subclass defines, so that it is remembered when it passes."""
        super().__init_subclass__()
        cls._passed = set()
        for name in [name for name in vars(cls) if name.startswith("test_")]:
            setattr(cls, name, _noted(name, getattr(cls, name)))

    @classmethod
    def subject(cls) -> type | None:
        """Return the class that passes when all tests of the suite have passed; None: nothing is noted."""
        return None

    @classmethod
    def contents(cls) -> set[str]:
        """Return the names of the tests of the suite, those of its bases included."""
        return {name for name in dir(cls) if name.startswith("test_")}


def _noted(name: str, test: Callable[..., None]) -> Callable[..., None]:
    """Wrap a test, so that the suite notes its subject when this was the last test to pass."""

    @wraps(test)
    def noted(self: Contract, *given: Any, **named: Any) -> None:
        test(self, *given, **named)
        suite = type(self)
        suite._passed.add(name)
        if suite._passed >= suite.contents() and (subject := suite.subject()) is not None:
            note_pass(subject)

    return noted
