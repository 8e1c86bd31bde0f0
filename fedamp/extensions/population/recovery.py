"""Make a population's file again after a disk was lost, from a backup and from what runs have published.

The most that may have been spent is spent. Each ledger and each released bundle names its population, its use of it,
and the chain's head at that time. So a use that the backup does not know is charged to everybody on the list. Uses that
no ledger tells may have cost all that was left, unless the operator states that there were none.
"""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedamp.accounting import from_json, group
from fedamp.accounting.verify import TOLERANCE
from fedamp.extensions.population.account import prices
from fedamp.extensions.population.store import (
    DataUse,
    Population,
    PopulationContents,
    PopulationError,
    counted,
    rewrite,
    use_content,
)

Ledgers = Sequence[tuple[Path, Mapping[str, Any]]]


@dataclass(frozen=True)
class Recovery:
    """Hold what is known of a population beside its file.

    Attributes:
        ledgers: of runs and bundles that were charged to it, each beside its folder.
        no_other_use: the operator states that its people's data was used for nothing else.

    Raises:
        PopulationError: a ledger is of no population, or of another one than the first.

    Example:
        >>> Recovery([], no_other_use=True).no_other_use
        True
    """

    ledgers: Ledgers
    no_other_use: bool = False

    def __post_init__(self) -> None:
        for run, ledger in self.ledgers:
            if ledger.get("population") is None:
                raise PopulationError(f"{run}: charged to no population; expected: runs of the lost one")
            if ledger["population"]["id"] != (first := self.ledgers[0][1]["population"]["id"]):
                raise PopulationError(f"{run}: charged to another population than {self.ledgers[0][0]}, {first}")

    def recover(self, file: Path, people: Sequence[tuple[str, str]] | None = None) -> PopulationContents:
        """Bring a backup up to date, or make the file again, and note that it is on this machine now.

        Args:
            file: a backup; or, with ``people``, the new file.
            people: a unit and its person each, where no backup is left. They get the smallest budget that a ledger
                names.

        Raises:
            PopulationError: the file is of another population, a ledger tells of more uses than are known and the
                operator says that there are no more, or nothing names the lost population. The file stays as it was.
        """
        if people is None:
            return rewrite(file, self._events)
        if not self.ledgers:
            raise PopulationError(f"{file}: no ledger names the lost population; expected: its runs, or a backup")
        told = [ledger["population"] for _, ledger in self.ledgers]
        epsilon, delta = min(each["budget_epsilon"] for each in told), min(each["delta"] for each in told)
        return Population.new(file, people, epsilon, delta, (told[0]["id"], self._events)).read()

    def _events(self, database: sqlite3.Connection, contents: PopulationContents) -> Iterator[dict[str, Any]]:
        """Yield the events that are missing; each is applied to the contents before the next one is made."""
        listed = dict(database.execute("SELECT person, count(*) FROM units GROUP BY person"))
        owners = np.repeat(np.array(list(listed), np.int64), list(listed.values()))
        counts = counted(np.array([contents.joined.get(each, each) for each in owners.tolist()], np.int64))
        for run, ledger in self.ledgers:
            told = ledger["population"]
            if told["id"] != contents.id:
                raise PopulationError(f"{run}: charged to another population, {told['id']}")
            known = contents.uses.get(told["use"])
            if known is not None and known.is_charged:
                continue
            mechanism, size = from_json(ledger["mechanism"]), ledger["group_size"]
            found = prices(lambda units: group(mechanism, math.ceil(units / size)), contents, counts)  # noqa: B023
            most = tuple(replace(price, share=min(price.share, 1.0)) for price in found)
            use = DataUse(told["use"], ledger["scenario"], "recovered", most, counts, token="recovered")
            yield use_content(replace(use, run=str(ledger.get("run") or ""), purpose="known from its ledger alone"))
        for use in list(contents.uses.values()):  # no process goes on with them: perhaps one has, elsewhere
            if use.state in ("reserved", "running"):
                yield {"kind": "state", "use": use.id, "state": "settled", "token": "recovered"}
        if self.no_other_use:
            self._check_complete(contents)
        heads = [head for _, ledger in self.ledgers if (head := ledger["population"]["head"]) not in contents.links]
        yield {"kind": "recovered", "heads": heads, "all_is_spent": not self.no_other_use}

    def _check_complete(self, contents: PopulationContents) -> None:
        """Refuse if a ledger tells of uses that neither the file nor another ledger knows."""
        charged = sum(use.is_charged for use in contents.uses.values())
        most = float(contents.spent().max(initial=0))
        for run, ledger in self.ledgers:
            told = ledger["population"]
            if told["uses"] > charged or told["share"] > most * (1 + TOLERANCE):
                raise PopulationError(
                    f"{run}: its ledger counts {told['uses']} uses, and {charged} are known; expected: the ledgers of "
                    "all runs, or no --no-other-use"
                )
