"""The ledger: what was really released, and what it costs so far. Written before each release, for an auditor."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedamp import __version__
from fedamp.accounting.bounds import finite
from fedamp.errors import FederationError, RunFolderError
from fedamp.plan import ADJACENCY, Plan
from fedamp.scenario import Scenario
from fedamp.runs.files import write_atomically
from fedamp.arrays import Arrays

FORMAT = "fedamp ledger 2"

ASSUMPTIONS = (
    "The server is trusted: it sees each node's sum before noise, and keeps it to itself.",
    "Check-in and submodel assignments are drawn afresh, independently for every unit, and hidden from whoever sees "
    "the releases.",
    "Noise is added to the sum; the denominator is public and fixed. A unit that fails counts as zero and is charged.",
    "Gaussian noise is drawn in float64; attacks on floating-point noise are not covered.",
    "Accuracy and loss are computed on a test set that is declared public.",
)


@dataclass(frozen=True)
class Release:
    """One released round.

    Attributes:
        round: its number, from 1.
        digest: SHA-256 of the released model.
        epsilon_upper: upper end of what is spent after it; infinite without noise.
    """

    round: int
    digest: str
    epsilon_upper: float

    def to_json(self) -> dict[str, Any]:
        """As in ``ledger.json``; an infinite epsilon is null, because JSON has no infinity."""
        return {"round": self.round, "epsilon_upper": finite(self.epsilon_upper), "digest": self.digest}


# What a newer fedamp may say otherwise of the same mechanism: a run that it interrupted must go on.
_MAY_DIFFER = {"written_by", "whole_run_epsilon", "epsilon_bound", "assumptions"}


class Ledger:
    """The ledger file of one run.

    A round stands in it before its model is released. A round that is computed again after a crash must give the model
    that the ledger names: releasing another one would spend the round's budget twice, so it is refused.
    """

    def __init__(self, file: Path, plan: Plan, releases: list[Release] | None = None) -> None:
        self.file, self.plan = file, plan
        self.releases = releases or []
        self._head = head(plan)
        self._head_text = json.dumps(self._head, indent=1, allow_nan=False, ensure_ascii=False)[:-2]
        self._lines: list[str] = []

    @classmethod
    def open(cls, file: Path, plan: Plan) -> "Ledger":
        """Read the ledger of an interrupted run, or start one.

        Raises:
            RunFolderError: if the file is damaged or belongs to another plan.
        """
        if not file.exists():
            return cls(file, plan)
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            releases = [
                Release(int(entry["round"]), str(entry["digest"]), epsilon_from_json(entry["epsilon_upper"]))
                for entry in content["releases"]
            ]
            ledger = cls(file, plan, releases)
            found = {key: content[key] for key in ledger._head}
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError, OSError) as error:
            reason = " ".join(str(error).split())
            raise RunFolderError(f"{file}: damaged ledger ({type(error).__name__}: {reason})") from None
        different = [key for key, value in ledger._head.items() if found[key] != value and key not in _MAY_DIFFER]
        if different:
            raise RunFolderError(f"{file}: the ledger of another run; it differs in {', '.join(different)}")
        ledger._check_releases()
        return ledger

    def _check_releases(self) -> None:
        rounds = [release.round for release in self.releases]
        if rounds != list(range(1, len(rounds) + 1)) or len(rounds) > self.plan.affordable_rounds:
            raise RunFolderError(
                f"{self.file}: damaged ledger: its rounds are not 1, 2, 3, ... each once, up to at most "
                f"{self.plan.affordable_rounds}"
            )
        for release, spent in zip(self.releases, self.plan.epsilon_by_round, strict=False):
            # As exact as the text of a number is, and the same sums on another machine.
            if not math.isclose(release.epsilon_upper, spent, rel_tol=1e-9):
                raise RunFolderError(
                    f"{self.file}: damaged ledger: round {release.round} cannot have left epsilon at "
                    f"{release.epsilon_upper:g}; the plan spends {spent:g}"
                )

    def enter(self, round_: int, parameters: Arrays, durable: bool = True) -> Release:
        """Write down a round that is about to be released.

        Args:
            round_: its number.
            parameters: the model.
            durable: whether the entry must survive a power cut, which takes longer than many a round of a simulation.

        Raises:
            FederationError: if the round was released before with another model, or is out of turn.
        """
        release = Release(round_, digest(parameters), float(self.plan.epsilon_by_round[round_ - 1]))
        if round_ <= len(self.releases):
            if self.releases[round_ - 1].digest != release.digest:
                raise FederationError(
                    f"{self.file}: round {round_} was released before with another model; "
                    "releasing it again would spend its privacy budget twice"
                )
            return release
        if round_ != len(self.releases) + 1:
            raise FederationError(f"{self.file}: round {round_} is out of turn after round {len(self.releases)}")
        self.releases.append(release)
        self._write(durable)
        return release

    def _write(self, durable: bool) -> None:
        # One line a round: a person can read it, and rewriting a few thousand lines takes less than a millisecond.
        self._lines += [json.dumps(release.to_json()) for release in self.releases[len(self._lines) :]]
        releases = ",\n  ".join(self._lines)
        write_atomically(self.file, f'{self._head_text},\n "releases": [\n  {releases}\n ]\n}}\n'.encode(), durable)


def digest(parameters: Arrays) -> str:
    """SHA-256 of a model: each name, a zero byte and the little-endian float32 values, in the order of the names.

    So whoever holds ``model.safetensors`` can compute it, without knowing how the model is built.
    """
    state = hashlib.sha256()
    for name in sorted(parameters):
        state.update(name.encode() + b"\0")
        state.update(np.ascontiguousarray(parameters[name], dtype="<f4").data)
    return state.hexdigest()


def head(plan: Plan) -> dict[str, Any]:
    """All of a ledger but its releases: what was planned, and what that costs."""
    privacy = plan.scenario.privacy
    return {
        "format": FORMAT,
        "written_by": f"fedamp {__version__}",
        "scenario": plan.scenario.name,
        "scenario_sha256": fingerprint(plan.scenario),
        "unit": privacy.unit,
        "units": plan.units,
        "group_size": privacy.group_size,
        "adjacency": ADJACENCY,
        "delta": privacy.delta,
        "budget_epsilon": privacy.epsilon,
        "amplification_charged": privacy.amplification,
        "parts": [
            {
                "name": part.name,
                "clip": part.clip,
                "noise_multiplier": part.noise_multiplier,
                "denominator": part.denominator,
            }
            for part in plan.parts
        ],
        "rounds_planned": plan.scenario.rounds,
        "mechanism": plan.mechanism.to_json(),
        "mechanism_in_words": str(plan.mechanism),
        "whole_run_epsilon": plan.epsilon.to_json(),
        "epsilon_bound": plan.epsilon.method,
        "noise_seed": "the scenario's: a rehearsal, whoever knows it can subtract the noise"
        if plan.known_seed
        else "from the operating system",
        "assumptions": list(ASSUMPTIONS),
        "guarantees_explained_in": "docs/threat-model.md",
    }


def fingerprint(scenario: Scenario) -> str:
    """SHA-256 of the scenario without what cannot change its results: its words, and where it runs."""
    where = {"kind", "workers", "device", "address"}
    text = scenario.model_dump_json(exclude={"description": True, "engine": where, "federation": True})
    return hashlib.sha256(text.encode()).hexdigest()


def epsilon_from_json(value: float | None) -> float:
    """An epsilon of a ledger; null is infinite."""
    return math.inf if value is None else float(value)


def epsilon_of(content: Mapping[str, Any]) -> float:
    """Epsilon spent after the last release of a ledger's JSON; 0 where nothing was released."""
    releases = content["releases"]
    return epsilon_from_json(releases[-1]["epsilon_upper"]) if releases else 0.0
