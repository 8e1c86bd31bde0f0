"""An auditor's look at a ledger: is every number in it at least what its own mechanism costs, computed again?

It needs ``ledger.json`` alone. A scenario and a model that lie beside it are checked against it; no records are read.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedamp.scenario import scenario_file
from fedamp.accounting import Mechanism, epsilon_over_rounds, from_json
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.plan import Plan, make_plan
from fedamp.runs.checks import Check
from fedamp.numbers import at_most, power
from fedamp.runs.ledger import FORMAT, digest, epsilon_from_json, fingerprint, head
from fedamp.runs.folder import RunFolder

TOLERANCE = 1e-6  # relative: sums come out in another order on another machine, and a text has so many digits

# What follows from the scenario alone. The number of units is taken from the ledger, because the records are not here.
_FROM_SCENARIO = (
    *("scenario", "unit", "group_size", "adjacency", "delta", "budget_epsilon", "amplification_charged"),
    *("parts", "rounds_planned", "mechanism"),
)


def verify_ledger(path: Path) -> list[Check]:
    """Compute a ledger's numbers again.

    Args:
        path: a run folder, or a ``ledger.json``; what lies beside it (``scenario.yaml``, ``model.safetensors``) is
            checked against it.

    Returns:
        What was looked at; all of it is fine where nothing was changed.

    Raises:
        RunFolderError: there is no ledger, or it cannot be read.
    """
    file = path / "ledger.json" if path.is_dir() else path
    if not file.is_file():
        merged = (file.parent / "certificate.json").is_file()
        accepted = "the runs that this model was merged from" if merged else "a run folder, or a ledger.json"
        raise RunFolderError(f"{file}: no such ledger; accepted: {accepted}")
    try:
        return list(_Ledger.read(file).checks())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())
        raise RunFolderError(f"{file}: damaged ledger ({type(error).__name__}: {reason[:300]})") from None


@dataclass(frozen=True)
class _Ledger:
    """A ledger as it stands in the file, with what lies beside it.

    Attributes:
        files: of the folder that it is in.
        content: all of it.
        mechanism: the accounting expression of the whole run.
        delta, planned, units: as in the file.
        budget: infinite where none was set.
        claimed: what is said to be spent after each release.
        claimed_whole: what the whole run is said to cost.
    """

    files: RunFolder
    content: dict[str, Any]
    mechanism: Mechanism
    delta: float
    planned: int
    units: int
    budget: float
    claimed: NDArray[np.float64]
    claimed_whole: float

    @classmethod
    def read(cls, file: Path) -> "_Ledger":
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, not {FORMAT!r}")
        return cls(
            files=RunFolder(file.parent),
            content=content,
            mechanism=from_json(content["mechanism"]),
            delta=float(content["delta"]),
            planned=int(content["rounds_planned"]),
            units=int(content["units"]),
            budget=epsilon_from_json(content["budget_epsilon"]),
            claimed=np.array([epsilon_from_json(entry["epsilon_upper"]) for entry in content["releases"]]),
            claimed_whole=epsilon_from_json(content["whole_run_epsilon"]["upper"]),
        )

    def checks(self) -> Iterator[Check]:
        yield self._mechanism()
        yield self._rounds()
        yield self._whole_run()
        yield self._releases()
        yield self._budget()
        yield Check("noise", True, str(self.content.get("noise_seed")))
        if self.files.scenario.is_file():
            yield self._scenario()
        if self.files.model.is_file():
            yield self._model()

    def _mechanism(self) -> Check:
        in_words = str(self.mechanism)
        if self.content.get("mechanism_in_words") != in_words:
            return Check("mechanism", False, f"mechanism_in_words says another one than: {in_words}")
        noise = set(_noise_multipliers(self.content["mechanism"]))
        for part in self.content["parts"] if self.mechanism.is_private else ():
            if part["noise_multiplier"] not in noise:
                said = f"the noise multiplier {part['noise_multiplier']} of part {part['name']!r}"
                return Check("mechanism", False, f"{said} is not in it")
        return Check("mechanism", True, in_words)

    def _rounds(self) -> Check:
        rounds = [entry.get("round") for entry in self.content["releases"]]
        if rounds != list(range(1, len(rounds) + 1)):
            return Check("rounds", False, "they are not 1, 2, 3, ... each once")
        fine = len(rounds) <= self.planned
        return Check("rounds", fine, f"{len(rounds)} released of {self.planned} planned")

    def _whole_run(self) -> Check:
        cost = self.mechanism.epsilon(self.delta).upper
        return Check("whole run", *_compared(self.claimed_whole, cost, "whole_run_epsilon"))

    def _releases(self) -> Check:
        try:
            spent = self._spent()
        except ScenarioError as error:
            return Check("releases", False, str(error))
        for number, (claimed, cost) in enumerate(zip(self.claimed, spent, strict=False), start=1):
            fine, found = _compared(claimed, cost, f"round {number}: epsilon_upper")
            if not fine:
                return Check("releases", False, found)
        last = self.claimed[-1] if len(self.claimed) else 0.0
        return Check("releases", True, f"epsilon {_shown(last)} at delta {power(self.delta)} after the last one")

    def _spent(self) -> NDArray[np.float64]:
        """Upper end of what is spent after each round."""
        if not self.mechanism.is_private:
            return np.full(self.planned, np.inf)
        if self.mechanism.span == self.planned:
            return epsilon_over_rounds(self.mechanism, self.delta)
        # Charged without amplification, it spans the rounds in which one unit can have taken part.
        if not self.files.scenario.is_file():
            raise ScenarioError("when a unit can have taken part is not in the ledger; put scenario.yaml beside it")
        return self._plan().epsilon_by_round

    def _budget(self) -> Check:
        last = self.claimed.max(initial=0.0)
        if math.isinf(self.budget):
            return Check("budget", True, "none was set")
        fine = bool(last <= self.budget)
        return Check("budget", fine, f"{_shown(last)} {'of' if fine else 'exceeds'} {self.budget:g}")

    def _plan(self) -> Plan:
        """The scenario's plan with the ledger's noise where it was calibrated, so that nothing is searched again."""
        asked = scenario_file.load(self.files.scenario)
        if asked.privacy.noise_multiplier == "auto":
            noise = {"noise_multiplier": float(self.content["parts"][-1]["noise_multiplier"])}
            asked = asked.model_copy(update={"privacy": asked.privacy.model_copy(update=noise)})
        return make_plan(asked, self.units)

    def _scenario(self) -> Check:
        try:
            wanted = head(self._plan()) | {"scenario_sha256": fingerprint(scenario_file.load(self.files.scenario))}
        except (ScenarioError, LookupError, ValueError) as error:
            return Check("scenario", False, f"{self.files.scenario.name} cannot be planned ({error})")
        keys = ("scenario_sha256", *_FROM_SCENARIO)
        different = [key for key in keys if self.content.get(key) != wanted[key]]
        if different:
            return Check("scenario", False, f"{self.files.scenario.name} gives another {', '.join(different)}")
        return Check("scenario", True, f"{self.files.scenario.name} is the one that was charged")

    def _model(self) -> Check:
        name, releases = self.files.model.name, self.content["releases"]
        try:
            found = digest(load_file(self.files.model))
        except (OSError, SafetensorError) as error:
            return Check("model", False, f"{name} cannot be read ({' '.join(str(error).split())})")
        if not releases or releases[-1]["digest"] != found:
            return Check("model", False, f"{name} is not the one that the last release names")
        return Check("model", True, f"{name} is the one of round {len(releases)}")


def _compared(claimed: float, cost: float, what: str) -> tuple[bool, str]:
    """A ledger may say more than a release costs (an older accountant was looser), never less."""
    if not claimed >= cost * (1 - TOLERANCE):  # so that a NaN is wrong, too
        return False, f"{what} is {claimed:.6g}; computed again it is {_exactly(cost)}"
    if claimed > cost * (1 + TOLERANCE):
        return True, f"{what} is {_exactly(claimed)}; computed again it is less, {_exactly(cost)}"
    return True, f"epsilon {_shown(cost)}"


def _noise_multipliers(mechanism: Any) -> Iterator[float]:
    """Every noise multiplier in a mechanism's JSON."""
    if isinstance(mechanism, dict):
        if "noise_multiplier" in mechanism:
            yield mechanism["noise_multiplier"]
        mechanism = list(mechanism.values())
    if isinstance(mechanism, list):
        for inner in mechanism:
            yield from _noise_multipliers(inner)


def _shown(epsilon: float) -> str:
    return "infinite (no noise)" if math.isinf(epsilon) else at_most(epsilon, 3)


def _exactly(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"
