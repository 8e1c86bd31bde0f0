"""Account for one run in a population's file: reserve before anybody is asked, settle at its end.

The run folder holds ``population.json``, the claim of the run on its use. A claim has tokens. A process that goes on
with a run changes the token in the file, so of two copies of a run folder only one goes on.

:func:`charged` is the hook around a run, :func:`check_room` that before several runs. The file itself is
:mod:`fedamp.extensions.population.store`'s.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from fedamp import rng
from fedamp.accounting import Mechanism
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.search import Budget
from fedamp.accounting.verify import TOLERANCE, Check, chained_digest
from fedamp.base.files import FileRecord, write_atomically
from fedamp.base.ids import in_words
from fedamp.base.numbers import at_least, at_most
from fedamp.base.record import Record
from fedamp.errors import FedampError, InputError, RunFolderError, ScenarioError, tell
from fedamp.extensions.population.record import PopulationRecord
from fedamp.extensions.population.section import population_file
from fedamp.extensions.population.spelling import alike_names, in_short
from fedamp.extensions.population.store import (
    SLACK,
    STATES,
    DataUse,
    Overspent,
    Population,
    PopulationContents,
    PopulationError,
    UnitCounts,
    UsePrice,
    UseState,
    held,
    percent,
)
from fedamp.federation.plan import Plan
from fedamp.federation.scenario import Scenario
from fedamp.runs.records import LedgerRecord
from fedamp.server.observers import RunHooks, RunStart

CLAIM = "population.json"
MOST_EXACT = 8  # uses up to which the cost of the fixed series is computed


class UseClaim(FileRecord):
    """The content of ``population.json`` in a run folder.

    Attributes:
        population: id of the population.
        use: id of the use that the run is.
        tokens: of which the last one, or an earlier one of a process that was killed, is in the population's file.
        record: for the ledger; None until the use is reserved.
    """

    kind: ClassVar[str] = "claim on a population"
    population: str
    use: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    tokens: tuple[str, ...]
    record: PopulationRecord | None


class RunAccount(RunHooks):
    """A run's use of a population, as hooks around the run.

    Args:
        population: that pays.
        start: of the run.
        units: names of its units.
        claim: the content of the run's claim.
    """

    def __init__(self, population: Population, start: RunStart, units: Sequence[str], claim: UseClaim) -> None:
        super().__init__()
        self.population, self._claim, self._units = population, claim, units
        self._folder, self._place = start.folder, start.folder.path / CLAIM
        self._asked = self._ended = False
        self._events, self._units_left = 0, frozenset[int]()

    @property
    def record(self) -> PopulationRecord:
        """Record for the ledger of the run."""
        assert self._claim.record is not None, "reserved"
        return self._claim.record

    def ledger(self) -> dict[str, Record]:
        """Return the record by its key."""
        return {"population": self.record}

    def before_question(self) -> None:
        """Write down that a message leaves now: from here on nothing is given back."""
        if not self._asked:
            self._move("running")
            self._asked = True

    def units_left(self) -> frozenset[int]:
        """Return the ids of units whose people have left meanwhile, or before."""
        if (events := self.population.events) != self._events:
            left, self._events = self.population.left_units(self._units), events
            if more := sorted(left - self._units_left):
                tell(f"the people of units {in_words(more)} have left: these units are asked nothing more")
            self._units_left = left
        return self._units_left

    def has_ended(self) -> None:
        """Remember that the run has ended, so that its use can be settled."""
        self._ended = True

    def close(self) -> None:
        """Settle a run that has ended, give back what was never asked for, and leave the rest to a resumption."""
        state = self.population.read().uses[self._claim.use].state
        if state == "running":
            self._move("settled" if self._ended else "running", _released(self._folder.ledger))
        elif state == "reserved":
            self._move("void")

    def _move(self, state: UseState, released: Mapping[str, Any] | None = None) -> None:
        """Change the state of the use, with this process's token, and what it has released."""
        self.population.move(self._claim.use, state, self._claim.tokens, self._claim.tokens[-1], released)

    def _keep(self, **changes: object) -> None:
        """Change the claim on the disk, and here."""
        self._claim = self._claim.model_copy(update=changes)
        write_atomically(self._place, self._claim.to_text().encode(), mode=0o600)


def _released(ledger: Path) -> dict[str, Any] | None:
    """Return what a run has released, for the person's history; None: its ledger does not say it."""
    try:
        told = LedgerRecord.read(ledger)
    except FedampError:  # no round was released; the run itself says what is wrong with its ledger
        return None
    return (
        {"rounds": len(told.releases), "model": told.releases[-1].digest, "ledger": told.head}
        if told.releases
        else None
    )


@contextmanager
def charged(start: RunStart) -> Iterator[RunAccount | None]:
    """Yield the account of a run while it is played; None: its scenario names no population.

    Raises:
        PopulationError: a person has not enough left, the file is not as it was, or the run is a copy.
        ScenarioError: the run cannot be charged to people.
        RunFolderError: the run has begun, and its claim is missing.
    """
    plan, folder = start.plan, start.folder.path
    place, file = folder / CLAIM, population_file(plan.scenario)
    if file is None:
        yield None
        return
    if plan.scenario.privacy.unit != "client":
        raise ScenarioError("privacy.population charges people by client; expected: privacy.unit: client")
    population, units = Population(file), plan.scenario.data.unit_names(Path())
    if len(units) != plan.units:
        raise ScenarioError(f"privacy.population: {len(units)} names for {plan.units} units; expected: one for each")
    if start.has_begun and not place.exists():
        raise RunFolderError(
            f"{place}: missing; expected: the file of the original run folder, or a run that began without a population"
        )
    owners = population.owners(units).tolist()
    if alike := alike_names(zip(units, owners, strict=True)):
        tell(f"{file}: {in_short(alike)}")
    with _removed_if_refused(start, place):
        if not place.exists():
            claim = UseClaim(population=population.id, use=_random_token(), tokens=(_random_token(),), record=None)
            write_atomically(place, claim.to_text().encode(), mode=0o600)
        copy = "another process plays this run, perhaps a copy of it; expected: one at a time"
        with held(UseClaim.read(place).use, PopulationError(f"{folder}: {copy}")):
            account = _open_account(start, population, units, place)
            try:
                yield account
            except BaseException:
                with suppress(InputError):  # the person must see the first error
                    account.close()
                raise
            account.close()


@contextmanager
def _removed_if_refused(start: RunStart, place: Path) -> Iterator[None]:
    """Leave no claim behind after bad input, where there was none, and no ledger."""
    is_new = not place.exists()
    try:
        yield
    except InputError:
        if is_new and not start.folder.ledger.exists():
            with suppress(OSError):  # the folder is read-only
                place.unlink(missing_ok=True)
        raise


def _open_account(start: RunStart, population: Population, units: Sequence[str], place: Path) -> RunAccount:
    """Open the account of a run: reserve its use, or take it over from the process that played the run before."""
    plan, contents = start.plan, population.read()
    account = RunAccount(population, start, units, claim := UseClaim.read(place))
    if claim.population != contents.id:
        raise PopulationError(f"{population.file}: another population than the one with which the run began")
    known = contents.uses.get(claim.use)
    if known is None and start.has_begun:
        raise PopulationError(
            f"{population.file}: this run is not recorded here; expected: the original population file"
        )
    wanted = chained_digest(start.fingerprint, {"units": plan.units, "mechanism": plan.charge.mechanism.to_json()})
    if known is not None and known.plan != wanted:
        raise PopulationError(f"{place}: the claim of another run; expected: as the run left it")
    if known is None or known.state == "void":
        _reserve_use(account, plan, wanted, units)
    elif known.state == "settled" and not start.has_ended:
        raise PopulationError(f"{population.file}: this run is settled; expected: a new run")
    elif not start.has_ended:
        account._keep(tokens=(*claim.tokens[-2:], _random_token()))
        tokens = account._claim.tokens
        population.move(claim.use, "running" if known.state == "running" else "reserved", tokens[:-1], tokens[-1])
        account._keep(tokens=account._claim.tokens[-1:])
        account._asked = known.state == "running"
    if account._claim.record is None:  # killed between the reservation and its record
        account._keep(record=_record_of_use(population.read(), claim.use))
    return account


def _reserve_use(account: RunAccount, plan: Plan, wanted: str, units: Sequence[str]) -> None:
    """Price a run to its people; where it does not fit, the error says what would."""
    population, claim = account.population, account._claim
    contents = population.read()
    counts = contents.counted(population.owners(units))
    given: Any = {"token": claim.tokens[-1], "run": plan.run_digest, "purpose": plan.scenario.description}
    use = DataUse(claim.use, plan.scenario.name, wanted, charges(plan, contents, counts), counts, **given)
    try:
        contents = population.reserve(use, units)
    except Overspent as error:
        raise error.with_words(what_fits(plan, error.budget, error.units, error.left)) from None
    account._keep(record=_record_of_use(contents, use.id))


def _record_of_use(contents: PopulationContents, use: str) -> PopulationRecord:
    """Make the record for the ledger: the person who has spent the most, with this use."""
    spent = contents.spent()
    person = int(np.argmax(np.where(contents.needed(contents.uses[use]) > 0, spent, -1.0)))
    budget, share = contents.budget(person), float(spent[person])
    return PopulationRecord(
        id=contents.id,
        head=contents.head,
        use=use,
        budget_epsilon=budget.epsilon,
        delta=budget.delta,
        share=share,
        adaptive_epsilon=budget.spent_epsilon(share),
        fixed_epsilon=fixed(contents, person),
        uses=len(contents.series(person)),
    )


def fixed(contents: PopulationContents, person: int) -> float | None:
    """Bound epsilon of a person's uses from above, if fixed in advance: exactly, or by the bound for chosen ones.

    Returns:
        None where there are more than eight uses, a lost disk knew of others, or no bound is known.
    """
    if len(contents.series(person)) > MOST_EXACT or contents.lost[person : person + 1].any():
        return None
    try:
        mechanism = contents.exact(person)
    except ValueError:  # of two neighbouring relations, which their shares of the budget do not mind
        return None
    if mechanism is None:
        return 0.0
    chosen = contents.budget(person).spent_epsilon(float(contents.spent()[person]))
    upper = min(chosen, mechanism.epsilon(delta_left(contents.delta, MOST_EXACT)).upper)
    return upper if math.isfinite(upper) else None


def charges(plan: Plan, contents: PopulationContents, counts: UnitCounts) -> tuple[UsePrice, ...]:
    """Price a run for a person with each number of units in it, and each budget.

    Args:
        plan: of the run.
        contents: of the population.
        counts: number of units of each person in the run, by the person's number.

    Raises:
        ScenarioError: the run has no noise.
    """
    if not plan.is_private:
        raise ScenarioError("privacy.noise_multiplier: 0 costs more than any budget; expected with a population: noise")
    return prices(plan.charge.for_person, contents, counts)


def prices(of: Callable[[int], Mechanism], contents: PopulationContents, counts: UnitCounts) -> tuple[UsePrice, ...]:
    """Price a use for a person with each number of units in it, and each budget.

    Args:
        of: gives the cost of the use for a person with so many units in it.
        contents: of the population.
        counts: number of units of each person in the use, by the person's number.
    """
    pairs = set(zip(counts.tolist(), contents.epsilons[: len(counts)].tolist(), strict=True))
    found = []
    for units, epsilon in sorted(pair for pair in pairs if pair[0]):
        mechanism = of(units)
        found.append(UsePrice(units, epsilon, Budget(epsilon, contents.delta).share_of_use(mechanism), mechanism))
    return tuple(found)


def left_units(scenario: Scenario) -> frozenset[int]:
    """Return the ids of a scenario's units whose people have left its population; empty: it names none.

    Raises:
        PopulationError: a unit is on no list, or the file is not as it was.
    """
    file = population_file(scenario)
    return frozenset() if file is None else Population(file).left_units(scenario.data.unit_names(Path()))


def check_room(runs: Sequence[tuple[Plan, int]]) -> None:
    """Refuse several runs, each so many times, that together cost a person of the population more than is left.

    Each run reserves its own cost when it starts.

    Raises:
        PopulationError: they do, before the first of them.
    """
    file = population_file(runs[0][0].scenario)
    if file is None:
        return
    population = Population(file)
    contents, names = population.read(), runs[0][0].scenario.data.unit_names(Path())
    counts = contents.counted(population.owners(names))
    uses = [(DataUse("", "", "", charges(plan, contents, counts), counts), times) for plan, times in runs]
    needed = sum((times * contents.needed(use) for use, times in uses), np.zeros(len(contents.epsilons)))
    left = 1 - contents.spent() * SLACK
    if ((needed > left) & (needed > 0)).any():
        person = int(np.argmin(np.where(needed > 0, left - needed, np.inf)))
        found = f"{percent(max(float(left[person]), 0.0))} of the budget left, and all of them cost"
        raise PopulationError(
            f"{population.file}: somebody has {found} {percent(float(needed[person]), up=True)}; expected: a smaller "
            "privacy.epsilon"
        )


def what_fits(plan: Plan, budget: Budget, units: int, left: float) -> str:
    """Describe which noise, epsilon or k a run of this scenario could have with what is left.

    Args:
        plan: of the run.
        budget: of the person who has too little left.
        units: of the person in the run.
        left: share of the budget.
    """

    def fits(changed: Plan, noise: float) -> bool:
        return budget.share_of_use(changed.charge.for_person(units, noise), sampled=False) <= left

    asked, noise = plan.scenario, plan.noise_multiplier
    if left <= 0:
        return "nothing more"
    low, high = noise, noise
    while not fits(plan, high):
        low, high = high, 2 * high
        if high > 1e4 * noise:
            return "nothing: no noise is enough"
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(plan, middle) else (middle, high)
    if asked.privacy.noise_multiplier == "auto":
        cost = plan.charge.with_noise(high, asked.privacy.group_size).epsilon(delta_left(asked.privacy.delta))
        return f"privacy.epsilon at most {at_least(cost.lower, 2)}"
    words = f"privacy.noise_multiplier at least {at_most(high, 3)}"
    k = getattr(asked.check_in, "k", 1)
    smaller = (replace(plan, scenario=_with_k(plan, less)) for less in range(k - 1, 0, -1))
    fitting = next((each for each in smaller if fits(each, noise)), None) if 1 < k <= 50 else None
    return words if fitting is None else f"{words}, or check_in.k at most {fitting.scenario.check_in.k}"  # type: ignore[attr-defined]


def _with_k(plan: Plan, k: int) -> Scenario:
    """Return the scenario with another number of check-ins a unit."""
    return plan.scenario.model_copy(update={"check_in": plan.scenario.check_in.model_copy(update={"k": k})})


def _random_token() -> str:
    """Draw an id or a token: 32 hexadecimal digits."""
    return f"{rng.seed_from_system():064x}"[:32]


def standing(contents: PopulationContents) -> dict[str, Any]:
    """Describe the state of a population, as JSON: the person of whom the most is spent, and the uses of each state."""
    spent = contents.spent()
    person = int(np.argmax(spent))
    budget, share = contents.budget(person), float(spent[person])
    adaptive = budget.spent_epsilon(share)
    states = [use.state for use in contents.uses.values()]
    return {
        "people": contents.people,
        "recovered": bool(len(contents.recovered) or contents.lost.any()),
        "uses": {state: states.count(state) for state in STATES},
        "budget_epsilon": budget.epsilon,
        "delta": budget.delta,
        "share_spent": share if math.isfinite(share) else None,
        "adaptive_epsilon_upper": adaptive if math.isfinite(adaptive) else None,
        "fixed_epsilon_upper": fixed(contents, person),
        "head": contents.head,
    }


def known_to(population: Population, run: Path, told: Mapping[str, Any] | None) -> Check:
    """Check that a population knows a run, and compute again the use that the run's ledger states.

    Args:
        population: whose file is here.
        run: folder, for the check's words.
        told: what the ledger says; None: nothing.
    """
    if told is None:
        return Check("population", "caution", f"{run}: charged to no population")
    try:
        told = PopulationRecord.from_json(json.dumps(told)).content()
    except ValueError as error:
        return Check("population", "fail", f"{run}: population: {error}")
    contents, wrong = population.read(), None
    if told["id"] != contents.id:
        wrong = "charged to another population"
    elif told["head"] in contents.recovered and (use := contents.uses.get(told["use"])) and use.is_charged:
        return Check("population", "caution", f"{run}: use {told['use']}, known from its ledger after a disk was lost")
    elif told["head"] not in contents.links:
        wrong = (
            f"the file does not hold the state of the run's ledger, {told['head']}: it was restored from a copy, "
            "or changed"
        )
    elif told["use"] not in contents.uses or not contents.uses[told["use"]].is_charged:
        wrong = f"use {told['use']} is not charged"
    elif told["use"] not in (then := population.at(told["head"])).uses:
        wrong = f"use {told['use']} came after the state of the run's ledger, {told['head']}"
    else:
        wrong = next(_understated_costs(told, _record_of_use(then, told["use"]).content()), None)
    state = "" if wrong else contents.uses[told["use"]].state
    return Check.of_failure("population", f"{run}: use {told['use']}, {state}", fail=wrong and f"{run}: {wrong}")


def _understated_costs(told: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a ledger says otherwise than its population; a cost may be more (of a looser bound), never less."""
    for key, value in again.items():
        is_cost = key in ("share", "adaptive_epsilon", "fixed_epsilon") and value is not None
        enough = is_cost and (told[key] is None or told[key] >= value * (1 - TOLERANCE))
        if told[key] != value and not enough:
            yield f"{key} is {told[key]}; computed again it is {value}"
