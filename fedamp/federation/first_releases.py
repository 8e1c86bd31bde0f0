"""First releases: define what a run releases of all units before its first round, for sections of extensions.

The data of the run depend on the released numbers: private means of the inputs are an example
(``fedamp/extensions/standardise``). The section of an extension charges the release, plays its round, and says what the
numbers do to the data. They are a section under one key of the ledger and of the task. The ledger's key is a
:class:`fedamp.accounting.verify.LedgerKey` with ``first_release``.
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, Self

from fedamp.base.section import Section
from fedamp.extension import by_key
from fedamp.federation.facts import AnyScenario
from fedamp.federation.optional import OptionalSection


class FirstRelease(OptionalSection):
    """Base of sections that release numbers of all units before the first round; a plan charges them first.

    Attributes:
        path: of the key of a scenario that asks for the release.
    """

    path: ClassVar[str]

    @classmethod
    @abstractmethod
    def asked_by(cls, scenario: AnyScenario) -> Self | None:
        """Make the section of a scenario; None: it asks for no such release."""

    @property
    @abstractmethod
    def assumption(self) -> str:
        """The sentence of the ledger about the release."""

    @classmethod
    @abstractmethod
    def data_with(cls, data: Any, told: Any) -> Any:
        """Copy a section of data with what a task or a ledger tells under the key of the release.

        Args:
            data: of a scenario that asks for the release.
            told: the released numbers; in the round that releases them, what asks for them.
        """

    @abstractmethod
    def release(self, inputs: Any, grid: Any, units_left: frozenset[int]) -> Section:
        """Play the round that releases the numbers; nothing is written down.

        Args:
            inputs: of the run (:class:`fedamp.server.setup.RunInputs`).
            grid: the nodes.
            units_left: ids of units that are asked nothing, because their people have left.

        Raises:
            FederationError: below quorum; nothing was released.
        """


@cache
def first_releases() -> dict[str, type[FirstRelease]]:
    """Return the first releases that extensions offer, by their key of ledger and task."""
    return by_key("first_releases")


def asked_releases(scenario: AnyScenario) -> Iterator[FirstRelease]:
    """Yield the sections of the first releases that a scenario asks for."""
    yield from filter(None, (kind.asked_by(scenario) for kind in first_releases().values()))


def data_after(data: Any, told: Any) -> Any:
    """Return a section of data with the numbers of all first releases.

    Args:
        data: as the scenario has it.
        told: a task or a ledger, which has the numbers by their keys.
    """
    for key, kind in first_releases().items():
        if (numbers := getattr(told, key)) is not None:
            data = kind.data_with(data, numbers)
    return data
