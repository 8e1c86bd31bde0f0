"""The base of all contracts: which tests there are, and the note that all of them have passed.

The note is a file in the cache (:mod:`fedamp.federation.contracts`). A run with a scheme of another package reads it,
and charges the scheme without amplification where it is missing.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from fedamp.base.section import Section
from fedamp.federation.contracts import forget_pass, note_pass

UNLIKELY = 1e-4
"""Probability with which a right scheme fails a statistical test; the seeds are fixed, so it fails always or never."""


class Contract:
    """Base of all contracts. A subclass that names what it tests is a suite for pytest.

    The class that :meth:`subject` gives is noted as passed once all tests of the suite have passed in one process, each
    with all its cases. So a selection of tests (``-k``) notes nothing. A test that fails removes the note. In that
    process no other suite of the class writes it again.
    """

    _passed: ClassVar[set[tuple[str, str]]]

    def __init_subclass__(cls) -> None:
        """Wrap each test that the subclass defines, so that it is remembered whether it passes."""
        super().__init_subclass__()
        cls._passed = set()
        for name in [name for name in vars(cls) if name.startswith("test_")]:
            setattr(cls, name, _noted(name, getattr(cls, name)))

    @classmethod
    def subject(cls) -> type | None:
        """Return the class that passes when all tests of the suite have passed; None: nothing is noted."""
        return None

    @classmethod
    def keys_in_words(cls) -> str:
        """Return the keys with which the class is tested, for the note; empty: it has none that matter."""
        return ""

    @classmethod
    def number_of_cases(cls) -> int:
        """Count the cases of all tests of the suite, those of its bases included."""
        tests = [getattr(cls, name) for name in dir(cls) if name.startswith("test_")]
        marks = [
            [mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"] for test in tests
        ]
        return sum(math.prod(map(len, values)) for values in marks)


def words_of_keys(scheme: Section) -> list[str]:
    """Write the keys of a scheme, each with its value."""
    return [f"{key} {value}" for key, value in scheme.model_dump(exclude={"scheme"}).items()]


_failed: set[type] = set()
"""Classes of which a test has failed in this process."""


def _noted(name: str, test: Callable[..., None]) -> Callable[..., None]:
    """Wrap a test, so that the suite notes its subject when this was the last case to pass."""

    @wraps(test)
    def noted(self: Contract, *given: Any, **named: Any) -> None:
        suite, subject = type(self), type(self).subject()
        try:
            test(self, *given, **named)
        except Exception:
            if subject is not None:
                _failed.add(subject)
                forget_pass(subject)
            raise
        suite._passed.add((name, repr((given, named))))
        if len(suite._passed) >= suite.number_of_cases() and subject is not None and subject not in _failed:
            note_pass(subject, suite.keys_in_words())

    return noted
