"""The ledger: what was really released, and what it costs so far. Written before each release, for an auditor."""

import hashlib
import json
import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedamp import __version__, rng
from fedamp.base.arrays import Arrays
from fedamp.errors import FederationError, RunFolderError
from fedamp.federation.plan import ADJACENCY, Plan
from fedamp.federation.scenario import Scenario
from fedamp.runs import chain
from fedamp.runs.files import write_atomically
from fedamp.runs.folder import RunFolder, write_secret
from fedamp.runs.records import (
    FROM_SYSTEM,
    KNOWN_SEED,
    Bracket,
    LedgerEntry,
    LedgerRecord,
    PartRecord,
    RoundRecord,
    Summary,
)

WRITTEN_BY = f"fedamp {__version__}"
ASSUMPTIONS = (
    "The server is trusted: it sees each node's sum before noise, and keeps it to itself.",
    "Check-in and submodel assignments are drawn afresh, independently for every unit, and hidden from whoever sees "
    "the releases.",
    "Noise is added to the sum; the denominator is public and fixed. A unit that fails counts as zero and is charged.",
    "Random numbers are AES-256 in counter mode, taken to be random. Noise is Gaussian, added to exact sums, rounded "
    "once; what its finite precision costs, less than 1e-34, is paid from delta.",
    "Accuracy and loss are computed on a test set that is declared public.",
)

# What a newer fedamp may say otherwise of the same mechanism, and what changes: an interrupted run must go on.
_MAY_DIFFER = {
    *("written_by", "mechanism_in_words", "whole_run_epsilon", "epsilon_bound", "guaranteed_epsilon", "assumptions"),
    *("format", "stopped_because", "files", "releases", "head"),
}


# Keys of sections that came after the first ledgers.
_LATER = {
    "data": {"transform"},
    "client": {"loss", "optimizer", "momentum", "weight_decay", "beta1", "beta2", "epsilon"},
    "model": {"vocabulary", "embedding", "frozen_sha256"},
    "server": {"averaging"},
    "submodels": {"rest"},
}


class Ledger:
    """The ledger file of one run.

    A round stands in it before its model is released. A round that is computed again after a crash must give the model
    that the ledger names: releasing another one would spend the round's budget twice, so it is refused.

    Args:
        file: ``ledger.json``, in the folder of the run.
        plan: what is played.
        frozen_sha256: digest of the model's frozen weights (:func:`fedamp.models.registry.pinned`).
        found: the ledger of an interrupted run.
    """

    def __init__(
        self, file: Path, plan: Plan, frozen_sha256: str | None = None, found: LedgerRecord | None = None
    ) -> None:
        self.file, self.folder, self.plan = file, RunFolder(file.parent), plan
        self.releases: list[LedgerEntry] = []
        self._lines: list[str] = []
        head = planned(plan, frozen_sha256=frozen_sha256).content()
        self._head = {key: value for key, value in head.items() if key not in ("releases", "head")}
        if found is not None:
            self._head |= {"stopped_because": found.stopped_because, "files": found.files}
        self._text = ""  # of what stands before the releases, which is the same in every round
        self._start = chain.start(self._head)
        self._add(found.releases if found else ())

    @classmethod
    def open(cls, file: Path, plan: Plan, frozen_sha256: str | None = None) -> "Ledger":
        """Read the ledger of an interrupted run, or start one.

        Raises:
            RunFolderError: if the file is damaged or belongs to another plan.
        """
        if not file.exists():
            return cls(file, plan, frozen_sha256)
        found, wanted = LedgerRecord.read(file), planned(plan, frozen_sha256=frozen_sha256)
        if found.format == "fedamp ledger 2":
            raise RunFolderError(
                f"{file}: {found.format}, of {found.written_by}, which drew other random numbers: the run cannot be "
                f"gone on with; expected: {wanted.format}, or a new folder"
            )
        different = differences(found, wanted, set(LedgerRecord.model_fields) - _MAY_DIFFER)
        if different:
            raise RunFolderError(f"{file}: the ledger of another run; it differs in {', '.join(different)}")
        try:
            found.check_rounds(plan.affordable_rounds)
        except ValueError as error:
            raise RunFolderError(f"{file}: damaged ledger: {error}") from None
        for entry, spent in zip(found.releases, plan.epsilon_by_round, strict=False):
            # As exact as the text of a number is, and the same sums on another machine. Another version may have been
            # looser: what its bounds said to be spent is at least what is.
            looser = found.written_by != WRITTEN_BY and entry.epsilon_upper >= spent
            if not looser and not math.isclose(entry.epsilon_upper, spent, rel_tol=1e-9):
                raise RunFolderError(
                    f"{file}: damaged ledger: round {entry.round} cannot have left epsilon at "
                    f"{entry.epsilon_upper:g}; the plan spends {spent:g}"
                )
        if found.head is not None:
            salt = RunFolder(file.parent).salt
            if found.releases and not salt.exists():
                raise RunFolderError(f"{salt}: gone; expected: as the run left it")
            for complaint in chain.altered_ledger(json.loads(file.read_bytes())):
                raise RunFolderError(f"{file.parent}: damaged ledger: {complaint}")
        return cls(file, plan, frozen_sha256, found)

    @cached_property
    def _salt(self) -> bytes:
        """Of the digests of what is the owner's."""
        if not self.folder.salt.exists():
            write_secret(self.folder.salt, f"{rng.seed_from_system():064x}")
        return self.folder.salt.read_bytes()

    def begin(self) -> None:
        """Write the ledger of a run that has released nothing, if there is none: from then on its absence is a loss."""
        if not self.file.exists():
            self._write(durable=True)

    def enter(
        self, round_: int, parameters: Arrays, record: RoundRecord | None = None, durable: bool = True
    ) -> LedgerEntry:
        """Write down a round that is about to be released.

        Args:
            round_: its number.
            parameters: the model.
            record: its line of ``rounds.jsonl``, where one is to be written.
            durable: whether the entry must survive a power cut, which takes longer than many a round of a simulation.

        Raises:
            FederationError: if the round was released before with another model, or is out of turn.
        """
        spent = float(self.plan.epsilon_by_round[round_ - 1])
        line = None if record is None else chain.salted(self._salt, record.to_json().encode())
        entry = LedgerEntry(round=round_, epsilon_upper=spent, digest=digest(parameters), record=line)
        later: list[LedgerEntry] = []
        if round_ <= len(self.releases):
            known = self.releases[round_ - 1]
            if known.digest != entry.digest:
                raise FederationError(
                    f"{self.file}: round {round_} was released before with another model; "
                    "releasing it again would spend its privacy budget twice"
                )
            if record is None or known.record == line:
                return known
            # Computed again after a crash, it took another time: its line is another one, and so is each later link.
            entry, later = known.model_copy(update={"record": line}), self.releases[round_:]
            del self.releases[round_ - 1 :], self._lines[round_ - 1 :]
        elif round_ != len(self.releases) + 1:
            raise FederationError(f"{self.file}: round {round_} is out of turn after round {len(self.releases)}")
        self._add([entry, *later])
        self._end(None, None)
        self._write(durable)
        return entry

    def conclude(self, summary: Summary) -> None:
        """Write down why the run stopped and the digests of the files that it leaves; then write the summary.

        The run may still be resumed. If it has no round left to play, all stays as it was, and so does the head.
        """
        left = chain.digests(self.folder, self._salt)
        ended = (self._head["stopped_because"], self._head["files"])
        if ended == (summary.stopped_because, left) and summary.error is None:
            return
        left[self.folder.summary.name] = chain.salted(self._salt, summary.to_text().encode())
        self._end(summary.stopped_because, left)
        self._write(durable=True)
        self.folder.write_summary(summary)

    def _end(self, stopped_because: str | None, files: dict[str, str] | None) -> None:
        if (self._head["stopped_because"], self._head["files"]) != (stopped_because, files):
            self._head |= {"stopped_because": stopped_because, "files": files}
            self._text = ""
            self.folder.summary.unlink(missing_ok=True)  # of an earlier end

    def _add(self, releases: Iterable[LedgerEntry]) -> None:
        for entry in releases:
            link = chain.after(self._last, entry.content())
            self.releases.append(entry.model_copy(update={"link": link}))

    @property
    def _last(self) -> str:
        return (self.releases[-1].link if self.releases else None) or self._start

    def _write(self, durable: bool) -> None:
        # One line a round: a person can read it, and rewriting a few thousand lines takes less than a millisecond.
        self._lines += [entry.to_json() for entry in self.releases[len(self._lines) :]]
        releases, head = ",\n  ".join(self._lines), chain.head(self._last, self._head)
        self._text = self._text or json.dumps(self._head, indent=1, allow_nan=False, ensure_ascii=False)[:-2]
        text = f'{self._text},\n "releases": [\n  {releases}\n ],\n "head": "{head}"\n}}\n'
        write_atomically(self.file, text.encode(), durable)


def planned(plan: Plan, asked: Scenario | None = None, frozen_sha256: str | None = None) -> LedgerRecord:
    """The ledger of a plan before its first release: what was planned, and what that costs.

    Args:
        plan: what is played.
        asked: the scenario as it was asked for, where the plan's has its noise filled in.
        frozen_sha256: digest of the model's frozen weights.
    """
    privacy = plan.scenario.privacy
    return LedgerRecord(
        format="fedamp ledger 4",
        written_by=WRITTEN_BY,
        scenario=plan.scenario.name,
        scenario_sha256=fingerprint(asked or plan.scenario),
        frozen_sha256=frozen_sha256,
        unit=privacy.unit,
        units=plan.units,
        group_size=privacy.group_size,
        adjacency=ADJACENCY,
        delta=privacy.delta,
        budget_epsilon=privacy.epsilon,
        amplification_charged=privacy.amplification,
        parts=tuple(
            PartRecord(
                name=part.name, clip=part.clip, noise_multiplier=part.noise_multiplier, denominator=part.denominator
            )
            for part in plan.parts
        ),
        rounds_planned=plan.scenario.rounds,
        mechanism=plan.mechanism,
        mechanism_in_words=str(plan.mechanism),
        whole_run_epsilon=Bracket.of(plan.planned_epsilon),
        epsilon_bound=plan.planned_epsilon.method,
        guaranteed_epsilon=plan.guaranteed_epsilon.upper if plan.is_private else None,
        noise_seed=KNOWN_SEED if plan.known_seed else FROM_SYSTEM,
        assumptions=ASSUMPTIONS,
        releases=(),
        head="",
    )


def differences(found: LedgerRecord, wanted: LedgerRecord, keys: set[str]) -> list[str]:
    """The keys, of those given, in which two ledgers differ; in the order in which they stand in a ledger."""
    return [key for key in LedgerRecord.model_fields if key in keys and getattr(found, key) != getattr(wanted, key)]


def digest(parameters: Arrays) -> str:
    """SHA-256 of a model: each name, a zero byte and the little-endian float32 values, in the order of the names.

    So whoever holds ``model.safetensors`` can compute it, without knowing how the model is built.
    """
    state = hashlib.sha256()
    for name in sorted(parameters):
        state.update(name.encode() + b"\0")
        state.update(np.ascontiguousarray(parameters[name], dtype="<f4").data)
    return state.hexdigest()


def fingerprint(scenario: Scenario) -> str:
    """SHA-256 of the scenario without its words, where it runs, and whether its seed is known.

    The first two cannot change its results, and the last one stands in the ledger by itself (``noise_seed``).
    """
    left_out: dict[str, Any] = {"description": True, "known_seed": True, "federation": True, "trackers": True}
    left_out["engine"] = {"kind", "workers", "device", "address"}
    # Keys that came later, where they say what was always so: a ledger of before then has the same digest.
    for section, later in _LATER.items():
        written = getattr(scenario, section)
        fields = {key: field for key, field in type(written).model_fields.items() if key in later}
        left_out[section] = {key for key, field in fields.items() if getattr(written, key) == field.default}
    text = scenario.model_dump_json(exclude=left_out)
    return hashlib.sha256(text.encode()).hexdigest()
