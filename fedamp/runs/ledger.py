"""The ledger: what was really released, and what it costs so far. Written before each release, for an auditor."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedamp import __version__
from fedamp.arrays import Arrays
from fedamp.errors import FederationError, RunFolderError
from fedamp.plan import ADJACENCY, Plan
from fedamp.runs.files import write_atomically
from fedamp.runs.records import FROM_SYSTEM, KNOWN_SEED, Bracket, Ending, LedgerEntry, LedgerRecord, PartRecord
from fedamp.scenario import Scenario

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
    *("stopped_because", "releases"),
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
        file: ``ledger.json``.
        plan: what is played.
        releases: of an interrupted run.
        frozen_sha256: digest of the model's frozen weights (:func:`fedamp.models.registry.pinned`).
    """

    def __init__(
        self, file: Path, plan: Plan, releases: tuple[LedgerEntry, ...] = (), frozen_sha256: str | None = None
    ) -> None:
        self.file, self.plan = file, plan
        self.releases = list(releases)
        self._lines: list[str] = []
        head = planned(plan, frozen_sha256=frozen_sha256).content()
        self._head = {key: value for key, value in head.items() if key != "releases"}
        self._text = ""  # of the head, which is the same in every round

    @classmethod
    def open(cls, file: Path, plan: Plan, frozen_sha256: str | None = None) -> "Ledger":
        """Read the ledger of an interrupted run, or start one.

        Raises:
            RunFolderError: if the file is damaged or belongs to another plan.
        """
        if not file.exists():
            return cls(file, plan, (), frozen_sha256)
        found, wanted = LedgerRecord.read(file), planned(plan, frozen_sha256=frozen_sha256)
        if found.format != wanted.format:
            raise RunFolderError(
                f"{file}: {found.format}, of {found.written_by}, which drew other random numbers: the run cannot be "
                f"gone on with; accepted: {wanted.format}, or a new folder"
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
        return cls(file, plan, found.releases, frozen_sha256)

    def begin(self) -> None:
        """Write the ledger of a run that has released nothing, if there is none: from then on its absence is a loss."""
        if not self.file.exists():
            self._write(durable=True)

    def enter(self, round_: int, parameters: Arrays, durable: bool = True) -> LedgerEntry:
        """Write down a round that is about to be released.

        Args:
            round_: its number.
            parameters: the model.
            durable: whether the entry must survive a power cut, which takes longer than many a round of a simulation.

        Raises:
            FederationError: if the round was released before with another model, or is out of turn.
        """
        spent = float(self.plan.epsilon_by_round[round_ - 1])
        entry = LedgerEntry(round=round_, epsilon_upper=spent, digest=digest(parameters))
        if round_ <= len(self.releases):
            if self.releases[round_ - 1].digest != entry.digest:
                raise FederationError(
                    f"{self.file}: round {round_} was released before with another model; "
                    "releasing it again would spend its privacy budget twice"
                )
            return entry
        if round_ != len(self.releases) + 1:
            raise FederationError(f"{self.file}: round {round_} is out of turn after round {len(self.releases)}")
        self.releases.append(entry)
        self._set("stopped_because", None)
        self._write(durable)
        return entry

    def conclude(self, stopped_because: Ending) -> None:
        """Write down why the run stopped; it may still be resumed."""
        self._set("stopped_because", stopped_because)
        self._write(durable=True)

    def _set(self, key: str, value: str | None) -> None:
        if self._head[key] != value:
            self._head[key], self._text = value, ""

    def _write(self, durable: bool) -> None:
        # One line a round: a person can read it, and rewriting a few thousand lines takes less than a millisecond.
        self._lines += [entry.to_json() for entry in self.releases[len(self._lines) :]]
        releases = ",\n  ".join(self._lines)
        self._text = self._text or json.dumps(self._head, indent=1, allow_nan=False, ensure_ascii=False)[:-2]
        write_atomically(self.file, f'{self._text},\n "releases": [\n  {releases}\n ]\n}}\n'.encode(), durable)


def planned(plan: Plan, asked: Scenario | None = None, frozen_sha256: str | None = None) -> LedgerRecord:
    """The ledger of a plan before its first release: what was planned, and what that costs.

    Args:
        plan: what is played.
        asked: the scenario as it was asked for, where the plan's has its noise filled in.
        frozen_sha256: digest of the model's frozen weights.
    """
    privacy = plan.scenario.privacy
    return LedgerRecord(
        format="fedamp ledger 3",
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
        whole_run_epsilon=Bracket.of(plan.epsilon),
        epsilon_bound=plan.epsilon.method,
        guaranteed_epsilon=plan.guaranteed_epsilon.upper if plan.is_private else None,
        noise_seed=KNOWN_SEED if plan.known_seed else FROM_SYSTEM,
        assumptions=ASSUMPTIONS,
        releases=(),
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
