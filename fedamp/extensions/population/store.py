"""Keep a population in a file: an SQLite database to which events are only ever added.

Each event has a link: SHA-256 of the link before and of its content. What was spent is computed from the events, so no
sum could be edited alone. The last link is kept outside, too: in the ledgers of runs, and in a note in the owner's own
folder (``$FEDAMP_HOME``, or ``~/.config/fedamp``). The note finds a file that was put back, copied or replaced, so
nothing is charged to a file without one. A lock beside it is held from the first look at the note to the next note. So
if two copies, or two links, are used at once, the second sees what the first has written.

Ids of people and units are in the file as salted hashes. :mod:`fedamp.extensions.population.account` uses the file for
runs, :mod:`fedamp.extensions.population.node` for the people of a node.
"""

import base64
import hashlib
import json
import math
import os
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt

from fedamp import rng
from fedamp.accounting import Compose, Mechanism, from_json, group
from fedamp.accounting.search import Budget
from fedamp.accounting.verify import chained_digest
from fedamp.base.files import FileRecord, home, lock, refuse_link, write_atomically, writing
from fedamp.errors import InputError, RunFolderError, UnwritableError
from fedamp.extensions.population.spelling import alike_names, folded

FORMAT = "fedamp population 1"
SLACK = 1 + 1e-12  # of sums of shares, for rounding

UseState = Literal["reserved", "running", "settled", "void"]
STATES: tuple[UseState, ...] = ("reserved", "running", "settled", "void")
UnitCounts = NDArray[np.uint16]


class PopulationError(InputError):
    """A population's file is wrong, its budget is spent, or a run does not belong to it."""


@dataclass(frozen=True)
class UsePrice:
    """The cost of a use for a person.

    Attributes:
        units: of the person in the use, at least 1.
        epsilon: budget of the person.
        share: of that budget, in [0, 1].
        mechanism: what the use releases about the person.
    """

    units: int
    epsilon: float
    share: float
    mechanism: Mechanism


@dataclass(frozen=True)
class DataUse:
    """One use of people's data, its state, and the token that is needed to go on with it.

    Attributes:
        id: 32 hexadecimal digits.
        name: of the scenario or the task.
        plan: digest of what the use does.
        charges: its price for each number of units and each budget.
        counts: number of units of each person in the use, uint16, by the person's number.
        state: reserved before anybody is asked, running from the first message on, then settled; or void.
        token: of the process that plays the run.
        run: uses with one :attr:`fedamp.federation.plan.Plan.run_digest` share hidden choices; empty: it is not known.
        purpose: what the use is for, in words.
        date: when it was reserved, by the operator's clock; empty: an earlier version did not write it down.
        released: ``rounds``, how many models were released; ``model``, the digest of the last one; ``ledger``, the head
            of the run's ledger. Empty: it is not known.
    """

    id: str
    name: str
    plan: str
    charges: tuple[UsePrice, ...]
    counts: UnitCounts
    state: UseState = "reserved"
    token: str = ""
    run: str = ""
    purpose: str = ""
    date: str = ""
    released: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_charged(self) -> bool:
        """True unless the use was given back before anybody was asked."""
        return self.state != "void"


@dataclass
class PopulationContents:
    """The state of a population after its events.

    Attributes:
        id: of the population, 32 hexadecimal digits.
        salt: of the hashes of ids.
        delta: of all budgets.
        epsilons: budget of each person, float64, by number.
        uses: by id, in their order.
        links: of the chain, one for each event.
        rows: digests of the units that each event added, in order.
        left: when each person who has left did so, by the operator's clock; by number.
        joined: the person that another one was found to be; by the other's number.
        lost: share of each person's budget, by number, that may have been spent in uses that a lost disk has forgotten.
        recovered: heads of the chain that was lost with the disk, which ledgers name.
    """

    id: str
    salt: bytes
    delta: float
    epsilons: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    uses: dict[str, DataUse] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    lost: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    recovered: set[str] = field(default_factory=set)

    @property
    def people(self) -> int:
        """Number of people; two that were joined are one."""
        return len(self.epsilons) - len(self.joined)

    @property
    def head(self) -> str:
        """Last link of the chain."""
        return self.links[-1]

    def spent(self, but: str = "") -> NDArray[np.float64]:
        """Add up each person's shares, float64 [people], without those of the use ``but``."""
        total = np.pad(self.lost, (0, len(self.epsilons) - len(self.lost)))
        for use in self.uses.values():
            if use.is_charged and use.id != but:
                total += self.needed(use)
        return total

    def needed(self, use: DataUse) -> NDArray[np.float64]:
        """Return each person's share of a use, float64 [people]; infinite where none was computed."""
        counts = np.pad(use.counts, (0, len(self.epsilons) - len(use.counts)))  # also of people who were added later
        needed = np.where(counts > 0, math.inf, 0.0)
        for charge in use.charges:
            needed[(counts == charge.units) & (self.epsilons == charge.epsilon)] = charge.share
        return needed

    def counted(self, owners: NDArray[np.int64]) -> UnitCounts:
        """Count the units of each person in a new use; a person who has left has none.

        Args:
            owners: number of each unit's person.

        Raises:
            PopulationError: all of them have left, or a person has more than 65,535 units.
        """
        staying = owners[~np.isin(owners, list(self.left))]
        if len(owners) and not len(staying):
            raise PopulationError("everybody of this run has left; expected: other people")
        return counted(staying)

    def series(self, person: int) -> list[tuple[DataUse, UsePrice]]:
        """List the uses that a person was charged, in order, with their price."""
        found = []
        for use in self.uses.values():
            asked = int(use.counts[person]) if person < len(use.counts) else 0, float(self.epsilons[person])
            charge = next((each for each in use.charges if (each.units, each.epsilon) == asked), None)
            if use.is_charged and asked[0] and charge:
                found.append((use, charge))
        return found

    def exact(self, person: int) -> Mechanism | None:
        """Compose all uses of a person as one mechanism, as if fixed in advance; None: there is none."""
        each = [charge.mechanism for _, charge in self.series(person)]
        return Compose(tuple(each)) if len(each) > 1 else each[0] if each else None

    def budget(self, person: int) -> Budget:
        """Return the budget of a person."""
        return Budget(float(self.epsilons[person]), self.delta)

    def name(self, kind: str, name: str) -> bytes:
        """Compute the salted hash of a person's or unit's id, 16 bytes."""
        return hashlib.blake2b(f"{kind}:{name}".encode(), key=self.salt, digest_size=16).digest()

    def person(self, name: str) -> tuple[bytes, bytes]:
        """Compute the salted hashes of a person's id: of its normal form, and of the spelling itself.

        The normal form has one kind of spaces and letters (NFKC). A file of an earlier version has hashes of spellings.
        """
        plain = " ".join(unicodedata.normalize("NFKC", name).split())
        return self.name("person", plain), self.name("person", name)


_TABLES = """
CREATE TABLE events (number INTEGER PRIMARY KEY, content TEXT NOT NULL, link TEXT NOT NULL);
CREATE TABLE units (unit BLOB PRIMARY KEY, person INTEGER NOT NULL, owner BLOB NOT NULL, event INTEGER NOT NULL);
"""


class Population:
    """The file of a population; each method that changes it is one transaction.

    Args:
        file: made by :meth:`new`.

    Raises:
        PopulationError: from every method: the file is missing, or not as fedamp left it.
    """

    def __init__(self, file: Path) -> None:
        self.file = Path(os.path.abspath(file))
        self.id = self.read().id

    @classmethod
    def new(
        cls,
        file: Path,
        people: Iterable[tuple[str, str]],
        epsilon: float,
        delta: float,
        lost: tuple[str, "FurtherEvents"] | None = None,
    ) -> "Population":
        """Make the file of a new population.

        Args:
            file: must not exist.
            people: a unit and the person whom it belongs to, each.
            epsilon, delta: the budget of each of these people.
            lost: id of a population whose file was lost, and what is known of it; None: a new population.

        Raises:
            PopulationError: the file exists, or a population was kept there; an id is empty or a duplicate; no such
                budget.
        """
        file = Path(os.path.abspath(file))
        budget = _budget_of(epsilon, delta)
        rows = _checked_people(people)
        refuse_link(file)
        if file.exists():
            raise PopulationError(f"{file}: exists already; expected: a new file")
        if known := _kept_at(file, _read_notes(), but=lost[0] if lost else ""):
            raise PopulationError(
                f"{file}: a population was kept here, and what its people spent must not be forgotten"
                f"; expected: that file back, or another name (its note is {_notes_folder() / known}.json)"
            )
        beside = file.with_name(f".{file.name}.writing")
        with writing(file):
            for left in file.parent.glob(f"{beside.name}*"):  # of a crash
                left.unlink()
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with _connected_database(beside) as database:
                database.executescript(_TABLES)
                id_, salt = (f"{rng.seed_from_system():064x}"[:length] for length in (32, 64))
                id_ = lost[0] if lost else id_
                about = {"kind": "population", "format": FORMAT, "id": id_, "salt": salt, "delta": budget.delta}
                database.execute("BEGIN IMMEDIATE")
                contents = _apply_event(None, about)
                _append_event(database, contents, about)
                _add_rows(database, contents, rows, budget.epsilon)
                for event in lost[1](database, contents) if lost else ():
                    _append_event(database, contents, event)
                database.execute("COMMIT")
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with held(contents.id):
                if lost is None:  # else an older note says that a population was kept there, until the last step
                    _write_note(file, contents, 0)  # without it nothing can be charged, and its copies could be
                with writing(file):
                    os.link(beside, file)  # never over another process's file
                _write_note(file, contents)
        finally:
            for left in beside.parent.glob(f"{beside.name}*"):
                left.unlink(missing_ok=True)
        return cls(file)

    # What it says.

    def read(self) -> PopulationContents:
        """Read the contents, checked against the chain and against the note outside of the file."""
        with self._open(write=False) as (_, contents):
            return contents

    def at(self, head: str) -> PopulationContents:
        """Read the contents as they were when ``head``, one of the links, was the last one."""
        with self._open(write=False) as (database, contents):
            return _replay_events(self.file, database, contents.links.index(head) + 1)

    def owners(self, units: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each unit's person, int64 [units].

        Raises:
            PopulationError: a unit is on no list.
        """
        with self._open(write=False) as (database, contents):
            return _owners_of(self.file, database, contents, units)

    def left_units(self, units: Sequence[str]) -> frozenset[int]:
        """Return the places of those units whose people have left.

        Raises:
            PopulationError: a unit is on no list.
        """
        with self._open(write=False) as (database, contents):
            owners = _owners_of(self.file, database, contents, units)
        return frozenset(np.flatnonzero(np.isin(owners, list(contents.left))).tolist())

    def person(self, name: str) -> int:
        """Return the number of a person.

        Raises:
            PopulationError: nobody has this id.
        """
        with self._open(write=False) as (database, contents):
            return self._number(database, contents, name)

    def _number(self, database: sqlite3.Connection, contents: PopulationContents, name: str) -> int:
        """Find the number of a person in an open transaction."""
        owner, spelled = contents.person(name)
        query = "SELECT DISTINCT owner, person FROM units WHERE owner IN (?, ?)"
        known: dict[bytes, int] = dict(database.execute(query, (owner, spelled)))
        found = known.get(owner, known.get(spelled))
        if found is None:
            raise PopulationError(f"{self.file}: no person has the id {name!r}")
        return contents.joined.get(found, found)

    def alike(self, names: Iterable[str]) -> list[list[str]]:
        """Group ids of people on the list that may be one person, and are several.

        Args:
            names: ids; of others on the list there is a hash only, and they are told as such.
        """
        with self._open(write=False) as (database, contents):
            owners = dict(database.execute("SELECT owner, person FROM units"))
            like: dict[bytes, set[int]] = {}
            for row, number in (
                database.execute("SELECT folded, person FROM spellings") if _has_spellings(database) else ()
            ):
                like.setdefault(row, set()).add(contents.joined.get(number, number))
        pairs = []
        for name in names:
            owner, spelled = contents.person(name)
            if (number := owners.get(owner, owners.get(spelled))) is not None:
                pairs.append((name, contents.joined.get(number, number)))
        groups = alike_names(pairs)
        told = {name for group in groups for name in group}
        others = ((name, like.get(contents.name("folded", folded(name)), set()) - {number}) for name, number in pairs)
        return groups + [[name, "an id on the list"] for name, found in others if found and name not in told]

    # What changes it: each in one transaction.

    def add(self, people: Iterable[tuple[str, str]], epsilon: float) -> None:
        """Add units and people; those who are new have the budget ``epsilon``, the others keep theirs.

        Raises:
            PopulationError: an id is empty, or a unit is there already.
        """
        rows = _checked_people(people)
        with self._open() as (database, contents):
            _budget_of(epsilon, contents.delta)
            _add_rows(database, contents, rows, epsilon)

    def reserve(self, use: DataUse, units: Sequence[str]) -> PopulationContents:
        """Charge a use to the people of ``units``, unless one of them has less left. A void use may come again.

        Args:
            use: with its prices.
            units: names of all units in it.

        Raises:
            Overspent: a person has not enough left.
            PopulationError: the use is known, another one has its seed, or its people changed meanwhile.
        """
        with self._open() as (database, contents):
            known = contents.uses.get(use.id)
            if known is not None and (known.state != "void" or known.plan != use.plan):
                raise PopulationError(f"{self.file}: use {use.id} is {known.state} already; expected: a new one")
            seeds = {each.run: each.id for each in contents.uses.values() if each.is_charged and each.run}
            if use.run in seeds:
                told = f"this use has the seed of use {seeds[use.run]}, so their costs do not add up"
                raise PopulationError(f"{self.file}: {told}; expected: another seed")
            owners = _owners_of(self.file, database, contents, units)
            if not np.array_equal(contents.counted(owners), use.counts):
                raise PopulationError(f"{self.file}: its people changed while the cost was computed; expected: again")
            needed, left = contents.needed(use), 1 - contents.spent() * SLACK
            short = np.flatnonzero((needed > left) & (needed > 0))  # a joined person may have overspent
            if len(short):
                person = int(short[np.argmin((left - needed)[short])])
                unit = units[int(np.argmax(owners == person))]
                raise Overspent(self.file, contents, use, person, unit, len(short))
            _append_event(database, contents, use_content(use))
        return contents

    def leave(self, name: str) -> None:
        """Let a person leave: no new use is charged to her, and running ones ask nothing of her units any more.

        What is reserved for her stays spent, because a part of it is. To leave twice changes nothing.

        Raises:
            PopulationError: nobody has this id.
        """
        with self._open() as (database, contents):
            person = self._number(database, contents, name)
            if person not in contents.left:
                _append_event(database, contents, {"kind": "leave", "person": person})

    def join(self, name: str, other: str) -> None:
        """Make one person of two: each use is charged as to one person who took part with the units of both.

        The person has the smaller of both budgets, also if that is overspent then, and has left if one of them has.
        An exact rule for groups prices the units of both (:func:`fedamp.accounting.group`); where none is known, the
        use costs all of the budget, and more.

        Raises:
            PopulationError: nobody has one of these ids, they are one person already, or the population changed.
        """
        contents, person, second = self.read(), self.person(name), self.person(other)
        if person == second:
            raise PopulationError(f"{self.file}: {name!r} and {other!r} are one person already")
        pair = [person, second]
        epsilon, charges = float(contents.epsilons[pair].min()), {}
        for use in contents.uses.values():
            counts = np.pad(use.counts, (0, len(contents.epsilons) - len(use.counts)))
            if units := int(counts[pair].astype(int).sum()):
                if units > np.iinfo(np.uint16).max:
                    raise PopulationError(f"{self.file}: both have more than 65,535 units in use {use.id}")
                charges[use.id] = _price_content(_joined_price(use, units, Budget(epsilon, contents.delta)))
        event = {"kind": "join", "person": person, "other": second, "epsilon": epsilon, "charges": charges}
        with self._open() as (database, now):
            if now.head != contents.head:
                raise PopulationError(f"{self.file}: changed while the cost was computed; expected: again")
            _append_event(database, now, event)

    @property
    def events(self) -> int:
        """Number of events, which is read soon; where it is as before, nothing has changed."""
        if not self.file.is_file():
            raise PopulationError(f"{self.file}: no such population; expected: the file with all its uses")
        with _connected_database(self.file) as database:
            return int(database.execute("SELECT count(*) FROM events").fetchone()[0])

    def move(
        self,
        use: str,
        state: UseState,
        tokens: Sequence[str],
        token: str,
        released: Mapping[str, Any] | None = None,
    ) -> PopulationContents:
        """Change a use's state, for a process that holds one of ``tokens``; from then on ``token`` is needed.

        Args:
            use: its id.
            state: the new one, or the same.
            tokens: of which the file has one.
            token: the new one.
            released: as :attr:`DataUse.released`; None: as it is known.

        Raises:
            PopulationError: another process went on with it, or it cannot get from its state to this one.
        """
        allowed = {"reserved": ("reserved",), "running": ("reserved", "running"), "void": ("reserved", "void")}
        with self._open() as (database, contents):
            found = contents.uses.get(use)
            if found is None:
                raise PopulationError(f"{self.file}: no use {use}; expected: the file with all its uses")
            if found.token not in tokens:
                raise PopulationError(
                    f"{self.file}: use {use}: a different copy of this run has continued; resume that copy"
                )
            if found.state not in allowed.get(state, ("running", "settled")):
                raise PopulationError(f"{self.file}: use {use} is {found.state}, and cannot be {state} any more")
            told = {} if released is None else {"released": dict(released)}
            if (found.state, found.token, found.released) != (state, token, told.get("released", found.released)):
                _append_event(database, contents, {"kind": "state", "use": use, "state": state, "token": token, **told})
        return contents

    @contextmanager
    def _open(self, write: bool = True) -> Iterator[tuple[sqlite3.Connection, PopulationContents]]:
        """Open a transaction, and read the contents in it, for as long as the context lasts."""
        refuse_link(self.file)
        if not self.file.is_file():
            raise PopulationError(f"{self.file}: no such population; expected: a file of fedamp population new")
        if self.file.stat().st_mode & 0o077:
            raise PopulationError(f"{self.file}: others may read it; expected: chmod 600")
        with held(self.id) if write else nullcontext():
            notes = _read_notes()  # before the file, which may go on meanwhile
            if write and self.id not in notes:
                wanted = "the file where it was made, or moved with its note"
                raise PopulationError(f"{self.file}: {_notes_folder() / self.id}.json is missing; expected: {wanted}")
            if (
                write
                and (note := notes[self.id])
                and isinstance(note, PopulationNote)
                and note.machine not in ("", here())
            ):
                found = "it was put here from another machine, perhaps from an old backup"
                raise PopulationError(f"{self.file}: {found}; expected: fedamp population recover, with all its runs")
            with _connected_database(self.file) as database:
                database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                contents = _replay_events(self.file, database)
                _compare_note(self.file, contents, notes)
                before = len(contents.links)
                yield database, contents
                database.execute("COMMIT")
            if len(contents.links) > before:
                _write_note(self.file, contents)


FurtherEvents = Callable[[sqlite3.Connection, PopulationContents], Iterable[dict[str, Any]]]
"""Makes events from the contents, which change with each event that it has made."""


def rewrite(file: Path, events: FurtherEvents) -> PopulationContents:
    """Add events to a file that came from elsewhere, whatever this machine's note says, and note that it is here now.

    Raises:
        PopulationError: the file is missing or damaged, or the events cannot be.
    """
    file = Path(os.path.abspath(file))
    refuse_link(file)
    if not file.is_file():
        raise PopulationError(f"{file}: no such population; expected: a backup, or its people with --people")
    if file.stat().st_mode & 0o077:
        raise PopulationError(f"{file}: others may read it; expected: chmod 600")
    with _connected_database(file) as database:
        id_ = _replay_events(file, database).id
        with held(id_):
            database.execute("BEGIN IMMEDIATE")
            contents = _replay_events(file, database)
            for event in events(database, contents):
                _append_event(database, contents, event)
            database.execute("COMMIT")
            _write_note(file, contents)
    return contents


class Overspent(PopulationError):
    """A person has less left than a use costs.

    Attributes:
        person: number of the person who lacks the most.
        units: of that person in the use.
        budget: of that person.
        left: share of that budget.
    """

    def __init__(
        self,
        file: Path,
        contents: PopulationContents,
        use: DataUse,
        person: int,
        unit: str,
        people: int,
        fits: str = "",
    ) -> None:
        self.given, self.person = (file, contents, use, person, unit, people), person
        self.units, self.budget = int(use.counts[person]), contents.budget(person)
        self.left = max(1 - float(contents.spent()[person]) * SLACK, 0.0)
        needed = float(contents.needed(use)[person])
        others = f" (and {people - 1} more)" if people > 1 else ""
        super().__init__(
            f"{file}: the person of unit {unit}{others} has {percent(self.left)} of the budget (epsilon "
            f"{self.budget.epsilon:g} at delta {self.budget.delta:g}) left, and this use costs "
            f"{percent(needed, up=True)}; expected: {fits or 'a cheaper one'}"
        )

    def with_words(self, fits: str) -> "Overspent":
        """Return the same error, with what would fit."""
        return Overspent(*self.given, fits)


def percent(share: float, up: bool = False) -> str:
    """Write a share in per cent, rounded down, or up where ``up``: never on the wrong side.

    >>> percent(0.33339), percent(0.33339, up=True)
    ('33.33 %', '33.34 %')
    """
    if not math.isfinite(share):
        return "more than all"
    return f"{(math.ceil if up else math.floor)(share * 1e4) / 100:.4g} %"


def _budget_of(epsilon: float, delta: float) -> Budget:
    """Make a budget.

    Raises:
        PopulationError: epsilon or delta is out of range.
    """
    try:
        return Budget(epsilon, delta)
    except ValueError as error:
        raise PopulationError(f"a population's {error}") from None


def _checked_people(people: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Refuse empty and duplicate ids."""
    rows = list(people)
    seen = set[str]()
    for unit, person in rows:
        if not unit or not person.strip():
            raise PopulationError(f"unit {unit!r} of person {person!r}: an empty id; expected: a name for each")
        if unit in seen:
            raise PopulationError(f"duplicate unit {unit!r}; expected: one row per unit")
        seen.add(unit)
    if not rows:
        raise PopulationError("no people; expected: at least one")
    return rows


# Events.


def use_content(use: DataUse) -> dict[str, Any]:
    """Write a use as an event, before it has a date."""
    charges = [_price_content(each) for each in use.charges]
    packed = base64.b64encode(zlib.compress(use.counts.astype("<u2").tobytes())).decode()
    about = {"kind": "use", "use": use.id, "name": use.name, "plan": use.plan, "token": use.token, "run": use.run}
    about |= {"purpose": use.purpose} if use.purpose else {}
    return about | {"charges": charges, "people": packed}


def _price_content(price: UsePrice) -> dict[str, Any]:
    """Write a price as a part of an event."""
    told = {"units": price.units, "epsilon": price.epsilon, "share": price.share}
    return told | {"mechanism": price.mechanism.to_json()}


def _price_of(content: Mapping[str, Any]) -> UsePrice:
    """Read a price of an event."""
    return UsePrice(content["units"], content["epsilon"], content["share"], from_json(content["mechanism"]))


def _joined_price(use: DataUse, units: int, budget: Budget) -> UsePrice:
    """Price a use for somebody with more units in it than anybody was known to have."""
    base = max(
        (each for each in use.charges if each.units <= units), key=lambda each: (units % each.units == 0, -each.units)
    )
    mechanism = group(base.mechanism, math.ceil(units / base.units))
    return UsePrice(units, budget.epsilon, budget.share_of_use(mechanism), mechanism)


def _apply_join(contents: PopulationContents, event: Mapping[str, Any]) -> None:
    """Make one person of two in all uses.

    Raises:
        LookupError, TypeError, ValueError: the event cannot be.
    """
    person, other = event["person"], event["other"]
    if not {person, other} <= set(range(len(contents.epsilons))) - set(contents.joined) or person == other:
        raise ValueError(f"no people {person!r} and {other!r}")
    contents.epsilons[person] = min(contents.epsilons[[person, other]])
    for name, content in event["charges"].items():
        use, price = contents.uses[name], _price_of(content)
        counts = np.pad(use.counts, (0, len(contents.epsilons) - len(use.counts))).copy()
        counts[person], counts[other] = int(counts[person]) + int(counts[other]), 0
        if not price.share >= 0 or price.units != counts[person] or price.epsilon != contents.epsilons[person]:
            raise ValueError("a charge is not a share")
        contents.uses[name] = replace(use, counts=counts, charges=(*use.charges, price))
    contents.joined = {each: person if last == other else last for each, last in contents.joined.items()} | {
        other: person
    }
    dates = [contents.left.pop(each) for each in (person, other) if each in contents.left]
    contents.left |= dict.fromkeys([person] if dates else [], min(dates, default=""))


def _apply_event(contents: PopulationContents | None, event: Mapping[str, Any]) -> PopulationContents:
    """Return the contents after an event.

    Raises:
        LookupError, TypeError, ValueError: the event cannot be.
    """
    if contents is None:
        if event["kind"] != "population" or event["format"] != FORMAT:
            raise ValueError(f"not a file of {FORMAT!r}")
        return PopulationContents(str(event["id"]), bytes.fromhex(event["salt"]), Budget(1.0, event["delta"]).delta)
    match event["kind"]:
        case "people":
            more = int(event["people"])
            contents.epsilons = np.r_[
                contents.epsilons, np.full(more, Budget(event["epsilon"], contents.delta).epsilon)
            ]
            contents.rows.append(event["rows"])
        case "use":
            charges = list(map(_price_of, event["charges"]))
            if any(not (0 <= each.share <= 1 and each.units > 0) for each in charges):
                raise ValueError("a charge is not a share")
            counts = np.frombuffer(zlib.decompress(base64.b64decode(event["people"])), "<u2")
            given = event["use"], event["name"], event["plan"], tuple(charges), counts
            told: Any = {key: str(event.get(key, "")) for key in ("token", "run", "purpose", "date")}
            contents.uses[event["use"]] = DataUse(*given, **told)
        case "state":
            if event["state"] not in STATES:
                raise ValueError(f"no state {event['state']!r}")
            changed = {key: event[key] for key in ("state", "token", "released") if key in event}
            contents.uses[event["use"]] = replace(contents.uses[event["use"]], **changed)
        case "join":
            _apply_join(contents, event)
        case "recovered":
            if event["all_is_spent"]:
                contents.lost = np.pad(contents.lost, (0, len(contents.epsilons) - len(contents.lost)))
                contents.lost += np.maximum(1 - contents.spent(), 0.0)
            contents.recovered |= set(event["heads"])
        case "leave":
            if not 0 <= event["person"] < len(contents.epsilons):
                raise ValueError(f"no person {event['person']!r}")
            contents.left[event["person"]] = str(event["date"])
        case _:
            raise ValueError(f"no event {event['kind']!r}")
    return contents


def _append_event(database: sqlite3.Connection, contents: PopulationContents, event: Mapping[str, Any]) -> None:
    """Add an event to the chain, with the operator's date, after it was applied."""
    event = {**event, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    previous = contents.head if contents.links else ""
    if previous:
        _apply_event(contents, event)
    contents.links.append(chained_digest(previous, event))
    row = len(contents.links), json.dumps(event), contents.head
    database.execute("INSERT INTO events VALUES (?, ?, ?)", row)


def _add_rows(
    database: sqlite3.Connection, contents: PopulationContents, rows: Sequence[tuple[str, str]], epsilon: float
) -> None:
    """Add units and people in one event; a person who is known keeps the number."""
    first, number = len(contents.epsilons), len(contents.links) + 1
    known, people = dict(database.execute("SELECT owner, person FROM units")), first
    spellings: list[tuple[bytes, int]] = []
    for unit, person in rows:
        owner, spelled = contents.person(person)
        if owner not in known and spelled in known:
            owner = spelled
        if owner not in known:
            spellings.append((contents.name("folded", folded(person)), people))
            known[owner], people = people, people + 1
        try:
            row = contents.name("unit", unit), known[owner], owner, number
            database.execute("INSERT INTO units VALUES (?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise PopulationError(f"unit {unit!r} is on the list already; expected: new ones") from None
    # For a report alone, so it is not in the chain. A file of an earlier version has none.
    database.execute("CREATE TABLE IF NOT EXISTS spellings (folded BLOB NOT NULL, person INTEGER NOT NULL)")
    database.executemany("INSERT INTO spellings VALUES (?, ?)", spellings)
    event = {"kind": "people", "people": people - first, "epsilon": epsilon, "rows": _digest_of_rows(database, number)}
    _append_event(database, contents, event)


def _has_spellings(database: sqlite3.Connection) -> bool:
    """Say whether the file can compare new ids with those on its list."""
    return bool(database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'spellings'").fetchone()[0])


def _digest_of_rows(database: sqlite3.Connection, event: int) -> str:
    """Compute the digest of the units that an event added."""
    state = hashlib.sha256()
    for unit, person, owner in database.execute(
        "SELECT unit, person, owner FROM units WHERE event = ? ORDER BY unit", (event,)
    ):
        state.update(unit + owner + int(person).to_bytes(8, "little"))
    return state.hexdigest()


def _owners_of(
    file: Path, database: sqlite3.Connection, contents: PopulationContents, units: Sequence[str]
) -> NDArray[np.int64]:
    """Find the number of each unit's person."""
    known = dict(database.execute("SELECT unit, person FROM units"))
    found = [known.get(contents.name("unit", unit), -1) for unit in units]
    if -1 in found:
        unit, missing = units[found.index(-1)], found.count(-1)
        others = f" (and {missing - 1} more)" if missing > 1 else ""
        raise PopulationError(f"{file}: unit {unit!r}{others} is not on its list; expected: fedamp population add")
    return np.array([contents.joined.get(each, each) for each in found], np.int64)


def counted(owners: NDArray[np.int64]) -> UnitCounts:
    """Count the units of each person, uint16, by number.

    Raises:
        PopulationError: a person has more than 65,535 of them.
    """
    counts = np.bincount(owners)
    if counts.max(initial=0) > np.iinfo(np.uint16).max:
        raise PopulationError("a person has more than 65,535 units in this run; expected: fewer")
    return counts.astype(np.uint16)


def _replay_events(file: Path, database: sqlite3.Connection, first: int | None = None) -> PopulationContents:
    """Replay the events, or the ``first`` ones.

    Raises:
        PopulationError: one is not as it was written, or the list of people is not.
    """

    def damaged(what: str) -> PopulationError:
        return PopulationError(f"{file}: damaged population: {what}; expected: as fedamp left it")

    contents: PopulationContents | None = None
    links, numbers, last = list[str](), list[int](), ""
    query = "SELECT number, content, link FROM events ORDER BY number LIMIT ?"
    for number, text, link in database.execute(query, (-1 if first is None else first,)):
        try:
            event = json.loads(text)
            if number != len(links) + 1 or link != chained_digest(last, event):
                raise damaged(f"event {number} is not as it was written")
            contents = _apply_event(contents, event)
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, zlib.error) as error:
            raise damaged(f"event {number}: {' '.join(str(error).split())}") from None
        last = link
        links.append(link)
        if event["kind"] == "people":
            numbers.append(number)
    if contents is None:
        raise damaged("it has no events")
    contents.links = links
    if first is not None:  # the list of people is that of all events
        return contents
    for number, told in zip(numbers, contents.rows, strict=True):
        if _digest_of_rows(database, number) != told:
            raise damaged(f"the people of event {number} are not as they were written")
    rows, people = database.execute("SELECT count(*), count(DISTINCT person) FROM units").fetchone()
    listed = database.execute(
        f"SELECT count(*) FROM units WHERE event IN ({','.join('?' * len(numbers))})", numbers
    ).fetchone()[0]
    if rows != listed or people != len(contents.epsilons):
        raise damaged("its list of people is not as it was written")
    return contents


@contextmanager
def _connected_database(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for one transaction; an error of SQLite becomes one line.

    The file is there already, for its owner alone. SQLite gives the files beside it the same mode, whatever the umask.
    """
    try:
        database = sqlite3.connect(file, timeout=60, isolation_level=None)
    except sqlite3.Error as error:
        raise PopulationError(f"{file}: cannot be opened ({error})") from None
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        yield database
    except sqlite3.OperationalError as error:
        kind = PopulationError if "no such" in str(error) else UnwritableError
        raise kind(f"{file}: cannot be read or written ({error}); nothing was charged") from None
    except sqlite3.DatabaseError as error:
        raise PopulationError(f"{file}: damaged population: {error}; expected: as fedamp left it") from None
    finally:
        database.close()  # rolls an open transaction back


# Notes outside of the file: which population is where, and how far it had come.


def _notes_folder() -> Path:
    """Return the folder of the notes."""
    return home() / "populations"


class PopulationNote(FileRecord):
    """A note, ``ID.json``: how far a population had come.

    Attributes:
        id: of the population.
        file: in which it was kept.
        number: of its last event; 0: it was about to be made.
        head: last link of its chain.
        machine: on which it was kept (:func:`here`); empty: unknown, as in notes of an earlier version.
    """

    kind: ClassVar[str] = "note of a population"
    id: str
    file: str
    number: NonNegativeInt
    head: str
    machine: str = ""


MACHINE_ID = Path("/etc/machine-id")


def here() -> str:
    """Return a digest that tells this machine from others; empty where it has no id, as in some containers."""
    try:
        return hashlib.sha256(b"fedamp population" + MACHINE_ID.read_bytes().strip()).hexdigest()[:32]
    except OSError:
        return ""


PopulationNotes = dict[str, PopulationNote | RunFolderError]
"""By the ids of populations; in the place of a damaged note its error, which concerns its own population alone."""


def _read_notes() -> PopulationNotes:
    """Read all notes of this user."""
    found: PopulationNotes = {}
    for place in sorted(_notes_folder().glob("*.json")):
        try:
            found[place.stem] = PopulationNote.read(place)
        except RunFolderError as error:
            found[place.stem] = error
    return found


def _kept_at(file: Path, notes: PopulationNotes, but: str = "") -> str | None:
    """Return the id of a population that was kept in a file; ``but``: of another one than this."""
    each = (note for note in notes.values() if isinstance(note, PopulationNote) and note.number and note.id != but)
    return next((note.id for note in each if note.file == str(file)), None)


def _compare_note(file: Path, contents: PopulationContents, notes: PopulationNotes) -> None:
    """Refuse a file that is older than its note, or that replaces another population."""
    note = notes.get(contents.id)
    if isinstance(note, RunFolderError):
        raise note
    if other := _kept_at(file, notes, but=contents.id):
        raise PopulationError(
            f"{file}: another population than {_notes_folder() / other}.json notes; expected: that one"
        )
    if note and note.number and contents.links[: note.number][-1] != note.head:
        raise PopulationError(
            f"{file}: an earlier or another state of this population than {_notes_folder() / note.id}.json notes "
            f"(event {note.number}); expected: the file with all its uses"
        )


def _write_note(file: Path, contents: PopulationContents, number: int | None = None) -> None:
    """Write down how far a population has come, for a process that holds its lock; ``number`` 0: before it is made."""
    number = len(contents.links) if number is None else number
    note = PopulationNote(id=contents.id, file=str(file), number=number, head=contents.head, machine=here())
    write_atomically(_notes_folder() / f"{contents.id}.json", note.to_text().encode(), mode=0o600)


@contextmanager
def held(name: str, busy: PopulationError | None = None) -> Iterator[None]:
    """Hold a lock in the folder of notes while the context lasts.

    Args:
        name: of the lock.
        busy: raised where another process holds it; None: wait for that process.
    """
    place = _notes_folder() / f"{name}.lock"
    with ExitStack() as until:
        with writing(place):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                until.enter_context(lock(place, wait=busy is None))
            except BlockingIOError as error:
                raise busy or error from None
        yield
