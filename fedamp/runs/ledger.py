"""Keep the ledger: the releases of a run, and their cost so far. It is written before each release, for an auditor.

The keys before the releases come from the plan. Each release is one line with the epsilon spent, the digest of its
model, and a link to the line before. :mod:`fedamp.server.journal` enters rounds, a custom app does so itself
(:mod:`fedamp.server.custom_app`). The functions at the end say when two ledgers or scenarios are the same; the
verification uses them, too.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp import rng
from fedamp.accounting import verify
from fedamp.base.arrays import Arrays
from fedamp.base.files import write_atomically, write_secret, writing
from fedamp.base.reading import read_regular, regular
from fedamp.base.record import Record
from fedamp.base.section import OwnersFile
from fedamp.base.version import version
from fedamp.errors import FederationError, InputError, RunFolderError
from fedamp.federation import reader
from fedamp.federation.aggregation import PlainAggregation
from fedamp.federation.choices import marked_keys
from fedamp.federation.contracts import assumptions_of
from fedamp.federation.first_releases import asked_releases, first_releases
from fedamp.federation.plan import Plan, make_plan
from fedamp.federation.scenario import Scenario
from fedamp.federation.side_sums import SideRelease
from fedamp.runs import chain
from fedamp.runs.folder import RunFolder, salted
from fedamp.runs.records import (
    KNOWN_SEED,
    NOT_EVALUATED,
    Bracket,
    LedgerEntry,
    LedgerRecord,
    RoundRecord,
    Summary,
    last_side_release,
    side_key,
)

WRITTEN_BY = f"fedamp {version()}"
ASSUMPTIONS = (
    "Check-in and submodel assignments are drawn afresh, independently for every unit, and hidden from everybody who "
    "sees the releases.",
    "Noise is added to the sum; the denominator is public and fixed. A unit that fails counts as zero and is charged.",
    "Random numbers are AES-256 in counter mode, taken to be random. Noise is Gaussian, added to exact sums, rounded "
    "once; what its finite precision costs, less than 1e-34, is paid from delta.",
)


class Ledger:
    """The ledger file of one run, new or interrupted.

    A round is in it before its model is released. A round that is computed again after a crash must give the model
    that the ledger names: releasing another one would spend the round's budget twice.

    Args:
        file: ``ledger.json``; it is read where it exists, and written by :meth:`begin` or :meth:`enter`.
        plan: of the run.
        frozen_sha256: digest of the model's frozen weights (:func:`fedamp.models.networks.pinned`).
        evaluation: the sentence that says what models are evaluated on.
        added: values of extensions' keys.

    Attributes:
        releases: entries so far, in order of the rounds.

    Raises:
        RunFolderError: the file is damaged, or of another plan or seed.
    """

    def __init__(
        self,
        file: Path,
        plan: Plan,
        frozen_sha256: str | None = None,
        evaluation: str = NOT_EVALUATED,
        added: Mapping[str, Record] | None = None,
    ) -> None:
        self.file, self.folder, self.plan, charge = file, RunFolder(file.parent), plan, plan.charge
        self.releases: list[LedgerEntry] = []
        self._lines: list[str] = []
        planned = LedgerRecord(
            format="fedamp ledger 4",
            written_by=WRITTEN_BY,
            **_of_the_plan(plan, plan.scenario, frozen_sha256),
            mechanism_in_words=str(charge.mechanism),
            whole_run_epsilon=Bracket.of(charge.planned_epsilon),
            epsilon_bound=charge.planned_epsilon.method,
            guaranteed_epsilon=charge.guaranteed_epsilon.upper if plan.is_private else None,
            epsilon_server=charge.server_epsilon and Bracket.of(charge.server_epsilon),
            epsilon_nodes=charge.nodes_epsilon and Bracket.of(charge.nodes_epsilon),
            assumptions=assumptions(plan, evaluation),
            **(added or {}),
            run=plan.run_digest,
            stopped_because=None,
            files=None,
            releases=(),
            head="",
        )
        found = self._read(frozen_sha256) if file.exists() else None
        if found and found.stopped_because in verify.ENDED:
            planned = planned.model_copy(update={"run": found.run})  # its seed may be deleted
        self._head = {key: value for key, value in planned.content().items() if key not in ("releases", "head")}
        self._text = ""  # of the keys before the releases: the same in every round
        self._start = verify.release_link("", self._head)
        if found:
            if found.run not in (None, planned.run) and self.folder.seed.exists():  # else it was killed before any use
                raise RunFolderError(f"{self.folder.seed}: not the seed of this run; expected: as the run left it")
            for name, key in verify.ledger_keys().items():
                if getattr(found, name) != getattr(planned, name):
                    raise RunFolderError(f"{file}: {key.other}; expected: as the run began")
            if found.is_evaluated != planned.is_evaluated:
                asked = "evaluates its models on public test records" if found.is_evaluated else "evaluates no model"
                raise RunFolderError(
                    f"{file}: the run {asked}; expected: data.test_is_public and its files as it began"
                )
            self._head |= {key: value for key, value in found.content().items() if key in verify.last_keys()}
            self._add(found.releases)

    def _read(self, frozen_sha256: str | None) -> LedgerRecord:
        """Read the ledger of a run that is resumed, and refuse one that another plan, or nobody honest, has written."""
        file, found, plan = self.file, LedgerRecord.read(self.file), self.plan
        if different := differences(found, plan, frozen_sha256=frozen_sha256):
            where = f"{', '.join(different)}{self._where()}"
            raise RunFolderError(f"{file}: the ledger of another run; it differs in {where}")
        try:
            found.check_rounds(plan.charge.affordable_rounds)
        except ValueError as error:
            raise RunFolderError(f"{file}: damaged ledger: {error}") from None
        for entry, spent in zip(found.releases, plan.charge.epsilon_by_round, strict=False):
            # As exact as the text of a number is, and the same sums on another machine. The bounds of another version
            # may be looser, never lower.
            looser = found.written_by != WRITTEN_BY and entry.epsilon_upper >= spent
            if not looser and not math.isclose(entry.epsilon_upper, spent, rel_tol=1e-9):
                raise RunFolderError(
                    f"{file}: damaged ledger: round {entry.round} cannot have left epsilon at "
                    f"{entry.epsilon_upper:g}; the plan spends {spent:g}"
                )
        if found.releases and not self.folder.salt.exists():
            raise RunFolderError(f"{self.folder.salt}: missing; expected: the file of the original run folder")
        for complaint in verify.altered_ledger(json.loads(read_regular(file))):
            raise RunFolderError(f"{file.parent}: damaged ledger: {complaint}")
        return found

    def check_files(self, last: int) -> None:
        """Check that the files beside the ledger are as the run left them.

        Args:
            last: the round after which the run goes on; later lines are dropped, so they do not count.

        Raises:
            RunFolderError: one line with the file that is missing or altered.
        """
        records = [entry.record for entry in self.releases]
        for complaint in chain.altered_files(self.folder, self._head["files"], records, last):
            raise RunFolderError(f"{self.folder.path}: {complaint}; expected: as the run left it")

    def _where(self) -> str:
        """Name the sections of the scenario that decide results and are not as when the run began."""
        try:
            began = reader.load(self.folder.scenario).model_dump(mode="json")
        except InputError:
            return ""
        asked = self.plan.scenario.model_dump(mode="json")
        others = {"description", "known_seed", "engine", "federation", "trackers"}
        changed = [key for key in asked if key not in others and asked[key] != began[key]]
        return f" (changed: {', '.join(changed)})" if changed else ""

    @cached_property
    def _salt(self) -> bytes:
        """Secret with which digests of the owner's files begin."""
        if not self.folder.salt.exists():
            write_secret(self.folder.salt, f"{rng.seed_from_system():064x}")
        return read_regular(self.folder.salt)

    def has_left(self, stopped_because: str) -> list[str]:
        """List what has left the server, in words, if the run stops now."""
        return verify.has_left(self._head | {"releases": self.releases, "stopped_because": stopped_because})

    @property
    def has_ended(self) -> bool:
        """Say whether the run has come to its end, so that no further round will be released."""
        return self._head["stopped_because"] in verify.ENDED

    def last_model(self) -> Arrays:
        """Read the model of the last release, as the run left it.

        Raises:
            RunFolderError: the file cannot be read, or it is another model.
        """
        file = self.folder.model
        try:
            found: Arrays = load_file(regular(file))
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"{file}: cannot be read ({' '.join(str(error).split())})") from None
        if digest(found) != self.releases[-1].digest:
            raise RunFolderError(f"{file}: not the model of the last release; expected: as the run left it")
        return found

    def begin(self) -> None:
        """Write a new ledger before the first release: from then on a missing ledger is an error."""
        if not self.file.exists():
            self._write(durable=True)

    def enter(
        self, round_: int, parameters: Arrays, record: RoundRecord | None = None, durable: bool = True
    ) -> LedgerEntry:
        """Write down a round that is about to be released.

        Args:
            round_: the next one, or one that was released before and is computed again.
            parameters: its model.
            record: its line of ``rounds.jsonl``, where one is to be written.
            durable: whether the entry must survive a power cut, which takes longer than a short round of a simulation.

        Returns:
            The entry in the chain.

        Raises:
            FederationError: the round was released before with another model or line, or is out of turn.
            UnwritableError: the ledger cannot be written; the round must not be released.
        """
        spent = float(self.plan.charge.epsilon_by_round[round_ - 1])
        line = None if record is None else salted(self._salt, record.to_json().encode())
        known: dict[str, Any] = {"round": round_, "epsilon_upper": spent, "digest": digest(parameters), "record": line}
        known |= {each.in_round: getattr(record, each.in_round, None) for each in verify.side_sums().values()}
        entry = LedgerEntry(**known, link="")
        later: list[LedgerEntry] = []
        if round_ <= len(self.releases):
            before = self.releases[round_ - 1]
            if before.digest != entry.digest:
                raise FederationError(
                    f"{self.file}: round {round_} was released before with another model; "
                    "releasing it again would spend its privacy budget twice"
                )
            if record is None or before.record == line:
                return before
            if not self.plan.known_seed:  # such a round is never computed again, so its line has been altered
                raise FederationError(f"{self.file}: round {round_} was released with another line of rounds.jsonl")
            # A round that is computed again after a crash has another time in its line, so later links change.
            entry, later = before.model_copy(update={"record": line}), self.releases[round_:]
            del self.releases[round_ - 1 :], self._lines[round_ - 1 :]
        elif round_ != len(self.releases) + 1:
            raise FederationError(f"{self.file}: round {round_} is out of turn after round {len(self.releases)}")
        self._add([entry, *later])
        self._end(None, None)
        self._write(durable)
        return entry

    @property
    def lacks_side_release(self) -> bool:
        """Say whether a side sum after the last round is asked for, and not yet written down."""
        side = self.plan.side_sum
        return side is not None and side.at_end and not self._head.get(verify.side_sums()[side.key].at_end)

    def enter_side_release(self, found: SideRelease) -> None:
        """Write down the side sum after the last round, before it is released."""
        side = self.plan.side_sum
        assert side is not None, "it was asked for"
        self._head[verify.side_sums()[side.key].at_end], self._text = found.content(), ""
        self._write(durable=True)

    @property
    def side_release(self) -> dict[str, Any]:
        """Last side sum that was released, by its key in a summary; empty: none was asked for."""
        side = self.plan.side_sum
        if side is None:
            return {}
        keys = verify.side_sums()[side.key]
        return side_key(side, last_side_release(keys, self._head.get(keys.at_end), self.releases))

    def reopen(self) -> None:
        """Write down that the run goes on, before its files change: from then on they are not those of its end."""
        if self._head["files"] is not None:
            self._end(None, None)
            self._write(durable=True)

    def conclude(self, summary: Summary) -> None:
        """Write down why the run stopped and the digests of its files, then the summary. It may still be resumed.

        Without a round left to play, everything stays as it was, also the head.

        Args:
            summary: of the rounds so far.
        """
        left = chain.digests(self.folder, self._salt)
        ended = (self._head["stopped_because"], self._head["files"])
        if ended == (summary.stopped_because, left) and summary.error is None:
            return
        left[self.folder.summary.name] = salted(self._salt, summary.to_text().encode())
        self._end(summary.stopped_because, left)
        self._write(durable=True)
        self.folder.write_summary(summary)

    def _end(self, stopped_because: str | None, files: dict[str, str] | None) -> None:
        """Note why the run stopped, or that it goes on; a summary of an earlier end is removed."""
        if (self._head["stopped_because"], self._head["files"]) != (stopped_because, files):
            self._head |= {"stopped_because": stopped_because, "files": files}
            self._text = ""
            with writing(self.folder.summary):
                self.folder.summary.unlink(missing_ok=True)  # of an earlier end of the run

    def _add(self, releases: Iterable[LedgerEntry]) -> None:
        """Append entries with their links."""
        for entry in releases:
            link = verify.release_link(self._last, entry.content())
            self.releases.append(entry.model_copy(update={"link": link}))

    @property
    def _last(self) -> str:
        """Last link of the chain."""
        return self.releases[-1].link if self.releases else self._start

    def _write(self, durable: bool) -> None:
        """Replace the file: the keys of the plan, a line for each release, and the head."""
        # One line a round: a person can read it, and rewriting a few thousand lines takes less than a millisecond.
        self._lines += [entry.to_json() for entry in self.releases[len(self._lines) :]]
        releases, head = ",\n  ".join(self._lines), verify.ledger_head(self._last, self._head)
        self._text = self._text or json.dumps(self._head, indent=1, allow_nan=False, ensure_ascii=False)[:-2]
        text = f'{self._text},\n "releases": [\n  {releases}\n ],\n "head": "{head}"\n}}\n'
        write_atomically(self.file, text.encode(), durable)


def _of_the_plan(plan: Plan, asked: Scenario, frozen_sha256: str | None) -> dict[str, Any]:
    """Return the keys of a ledger that must be the same when its run is resumed, by any version, or verified."""
    privacy = plan.scenario.privacy
    return {
        "scenario": asked.name,
        "scenario_sha256": fingerprint(asked),
        "frozen_sha256": frozen_sha256,
        "unit": privacy.unit,
        "units": plan.units,
        "group_size": privacy.group_size,
        "adjacency": plan.adjacency,
        "delta": privacy.delta,
        "budget_epsilon": privacy.epsilon,
        "amplification_charged": privacy.amplification,
        "precision": privacy.precision,
        "parts": plan.parts,
        "noise_coefficients": plan.coefficients,
        "rounds_planned": plan.scenario.rounds,
        "mechanism": plan.charge.mechanism,
        "server_mechanism": plan.charge.server_mechanism,
        "nodes_mechanism": plan.charge.nodes_mechanism,
        "noise_seed": KNOWN_SEED if plan.known_seed else verify.FROM_SYSTEM,
        "rehearsal": plan.rehearsal,
        "unchecked": plan.unchecked_schemes,
        **{key: plan.sections.get(key) for key in verify.side_sums()},
    }


def assumptions(plan: Plan, evaluation: str) -> tuple[str, ...]:
    """List the sentences on which the guarantee of a plan rests.

    Args:
        plan: of the run.
        evaluation: the sentence that says what models are evaluated on.
    """
    side = plan.scenario.side_sum
    return (
        plan.scenario.aggregation.trust_assumption(plan.agreed_terms),
        *ASSUMPTIONS,
        *assumptions_of(plan.scenario),
        *([] if side and evaluation == NOT_EVALUATED else [evaluation]),
        *([side.assumption] if side else []),
        *(each.assumption for each in asked_releases(plan.scenario)),
    )


def plan_of(ledger: LedgerRecord, scenario: Scenario) -> Plan:
    """Make the plan of a run's scenario, with the ledger's noise instead of ``auto``: nothing is calibrated again.

    Args:
        ledger: of the run; it gives noise, coefficients and number of units.
        scenario: as it was asked for.

    Raises:
        ScenarioError: no plan can be made of them.
    """
    scenario = scenario.with_bands(len(ledger.noise_coefficients) + 1, ledger.noise_coefficients)
    if scenario.privacy.noise_multiplier == "auto":
        noise = {"noise_multiplier": ledger.noise_multiplier}
        scenario = scenario.model_copy(update={"privacy": scenario.privacy.model_copy(update=noise)})
    asked, told = scenario.side_sum, ledger.side_sum
    if asked is not None and told is not None and asked.epsilon is not None:
        scenario = scenario.model_copy(update={asked.key: asked.with_noise(told.noise_multiplier or 0)})
    return replace(make_plan(scenario, ledger.units), known_seed=scenario.known_seed)


def of_auto(ledger: LedgerRecord, plan: Plan, asked: Scenario) -> tuple[str | None, str | None]:
    """Check the cost of what a scenario leaves to ``auto``.

    Another version may choose otherwise, but its choice may not make the ledger say a smaller cost. ``auto`` noise
    spends the budget, up to the precision of the accounting, in every version: so nothing is calibrated again.

    Args:
        ledger: of the run.
        plan: :func:`plan_of` ledger and scenario.
        asked: the scenario.

    Returns:
        A caution and a failure; at most one of them is not None.
    """
    privacy, fresh = asked.privacy, make_plan(asked, ledger.units)
    stated, recomputed = ledger.whole_run_epsilon.upper, plan.charge.planned_epsilon.upper
    lowest, full = min(stated, recomputed), privacy.epsilon
    if privacy.noise_multiplier != "auto":
        if plan.coefficients == fresh.coefficients:
            return None, None
        full = fresh.charge.planned_epsilon.upper
    elif full is not None and lowest < full * (1 - privacy.precision):  # perhaps no noise spends so large a budget
        full = min(full, fresh.charge.planned_epsilon.upper)
    if full is None or lowest >= full * (1 - privacy.precision):
        return None, None
    found = f"{stated:.6g}, for noise that costs {recomputed:.6g} by this version; what auto chooses costs {full:.6g}"
    by_another = stated >= full * (1 - privacy.precision) and ledger.written_by != WRITTEN_BY  # with a looser bound
    return (found, None) if by_another else (None, found)


def differences(
    ledger: LedgerRecord, plan: Plan, asked: Scenario | None = None, frozen_sha256: str | None = None
) -> list[str]:
    """List the keys in which a ledger differs from what its run, resumed or verified, would write.

    Args:
        ledger: as it was read.
        plan: of the run.
        asked: the scenario as it was asked for, where the plan's has its noise filled in (:func:`plan_of`).
        frozen_sha256: digest of the model's frozen weights.
    """
    wanted = _of_the_plan(plan, asked or plan.scenario, frozen_sha256)
    released = [key for key in first_releases() if getattr(ledger, key) is not None]
    asked_for = [key for key, kind in first_releases().items() if kind.asked_by(plan.scenario) is not None]
    if plan.known_seed and ledger.run is not None:
        wanted["run"] = plan.run_digest
    if ledger.nodes_mechanism is None and ledger.written_by != WRITTEN_BY:
        del wanted["nodes_mechanism"]  # earlier versions charged registered nodes with nothing
    return [key for key, value in wanted.items() if getattr(ledger, key) != value] + sorted({*released} ^ {*asked_for})


def digest(parameters: Arrays) -> str:
    """Compute SHA-256 of a model: each name, a zero byte, the little-endian values; in order of names.

    Args:
        parameters: arrays by name, of a model or a checkpoint. A model's values are float32, remembered noise has
            float64.
    """
    state = hashlib.sha256()
    for name in sorted(parameters):
        array = parameters[name]
        state.update(name.encode() + b"\0")
        state.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
    return state.hexdigest()


def fingerprint(scenario: Scenario) -> str:
    """Compute SHA-256 of a scenario, without its description and keys that change no result (most of engine, trackers).

    Checkpoints and ledgers name it, so that a run is resumed with its own scenario only. The ledger itself holds the
    frozen weights, and whether the seed is known (``noise_seed``).
    """
    excluded: dict[str, Any] = {"description": True, "known_seed": True, "federation": True, "trackers": True}
    excluded |= {"engine": {"kind", "workers", "device", "address"}, "model": {"frozen_sha256"}}
    excluded["privacy"] = {"precision"}  # which the ledger holds
    for section, key, _ in marked_keys(OwnersFile):
        excluded[section] = {*excluded.get(section, ()), key}
    if isinstance(scenario.aggregation, PlainAggregation):  # as before there was another
        excluded["aggregation"] = True
    content = scenario.model_dump(mode="json", by_alias=True, exclude=excluded)
    content["engine"]["precision"] = content["client"].pop("precision")  # where older versions have it
    return hashlib.sha256(TypeAdapter(dict[str, Any]).dump_json(content)).hexdigest()
