"""One merger: finished runs and a budget in, a folder with the merged model and its certificate out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedamp import __version__, rng
from fedamp.accounting.bounds import finite
from fedamp.arrays import Arrays
from fedamp.merging.candidates import Candidate, Candidates, read_candidates
from fedamp.merging.decision import (
    FIXED_INPUTS,
    ONLY_RELEASE,
    RANDOM_SELECTION,
    SAME_DATA,
    Decision,
    MergeRequest,
    decide,
)
from fedamp.merging.pictures import epsilon_over_weights
from fedamp.report import style
from fedamp.report.merged import CERTIFICATE, FORMAT
from fedamp.runs.files import write_json
from fedamp.runs.folder import RunFolder, new_folder
from fedamp.runs.ledger import digest


@dataclass(frozen=True)
class Draw:
    """Which model was drawn, from which seed, and whether a person gave the seed."""

    model: Candidate
    seed: int
    given: bool

    def to_json(self) -> dict[str, str]:
        """As in the certificate; that the draw is known costs nothing more."""
        source = "given: a rehearsal, it can be chosen for its draw" if self.given else "from the operating system"
        return {"model": self.model.label, "seed": str(self.seed), "seed_source": source}


def merge_runs(request: MergeRequest, out: Path | None = None) -> dict[str, Any]:
    """Merge trained models for a new budget.

    The folder holds ``model.safetensors``, ``certificate.json`` (to hand out with the model), ``summary.json``,
    ``plots`` and ``salt.secret`` (to show an auditor which ledgers the certificate is about).

    Args:
        request: which models, how, and the budget.
        out: the new folder; left out: a new one under ``runs``.

    Returns:
        The certificate, with ``folder``, the merged model's ``final`` accuracy and loss, and, under ``unprotected``,
        the inputs' accuracies, which are for the owner alone.

    Raises:
        MergeError: the models cannot be merged, or not within the budget.
        RunFolderError: an input is missing or damaged, or ``out`` holds something already.
    """
    candidates = read_candidates(request.models)
    decision = decide(request, candidates)
    folder = new_folder(out, "merged")
    drawn = None
    if request.method == RANDOM_SELECTION:
        seed = rng.seed_from_system() if request.seed is None else request.seed
        drawn = Draw(candidates.models[draw(decision.weights, seed)], seed, request.seed is not None)
    parameters = drawn.model.parameters if drawn else candidates.combined(decision.weights)
    certificate = _certificate(request, candidates, decision, drawn, parameters, _salt(folder))
    # As with a ledger, what is released is written down first.
    write_json(folder.path / CERTIFICATE, certificate)
    folder.write_model(parameters)
    final = _summarise(folder, certificate, candidates, parameters)
    _picture(folder, request, candidates, decision)
    return certificate | {
        "folder": str(folder.path),
        "final": final,
        "unprotected": {"accuracies": list(candidates.accuracies)},
    }


def draw(weights: Sequence[float], seed: int) -> int:
    """Which model a random selection releases: an index, drawn with the given weights."""
    return int(np.searchsorted(np.cumsum(weights[:-1]), rng.stream(seed, "merge").random(), side="right"))


def _salt(folder: RunFolder) -> bytes:
    """A secret that makes the digests of the inputs' ledgers say nothing to who does not have it.

    A ledger names the digests of the input models. A plain digest of it would let anybody who guesses an input without
    noise check the guess.
    """
    salt = f"{rng.seed_from_system():032x}"
    file = folder.path / "salt.secret"
    file.touch(mode=0o600)
    file.write_text(salt)
    return salt.encode()


def _certificate(
    request: MergeRequest,
    candidates: Candidates,
    decision: Decision,
    drawn: Draw | None,
    parameters: Arrays,
    salt: bytes,
) -> dict[str, Any]:
    """What can be handed out with the model; nothing in it depends on models that are not released."""
    ledger = candidates.ledger
    return {
        "format": FORMAT,
        "written_by": f"fedamp {__version__}",
        "method": request.method,
        "unit": ledger["unit"],
        "units": ledger["units"],
        "group_size": ledger["group_size"],
        "adjacency": ledger["adjacency"],
        "delta": request.delta,
        "budget_epsilon": request.epsilon,
        "epsilon": decision.epsilon.to_json(),
        "epsilon_bound": decision.epsilon.method,
        "mechanism": decision.mechanism.to_json(),
        "mechanism_in_words": str(decision.mechanism),
        "weights": list(decision.weights),
        "weights_chosen_by": decision.chosen_by,
        "best_weights_by_accounting": {name: list(weights) for name, weights in decision.feasible.items()},
        "inputs": [_input(model, request.delta, salt) for model in candidates.models],
        "draw": drawn.to_json() if drawn else None,
        "rehearsal": any(model.is_rehearsal for model in candidates.models) or bool(drawn and drawn.given),
        "model_sha256": digest(parameters),
        "assumptions": [
            ONLY_RELEASE,
            SAME_DATA,
            FIXED_INPUTS,
            *decision.assumptions,
            *ledger["assumptions"],
        ],
        "guarantees_explained_in": "docs/merging.md",
    }


def _input(model: Candidate, delta: float, salt: bytes) -> dict[str, Any]:
    ledger = model.run.ledger
    return {
        "name": model.label,
        "scenario": ledger["scenario"],
        "scenario_sha256": ledger["scenario_sha256"],
        "ledger_sha256_with_salt": hashlib.sha256(salt + RunFolder(model.run.folder).ledger.read_bytes()).hexdigest(),
        "round": model.round,
        "rounds_planned": ledger["rounds_planned"],
        "mechanism_in_words": str(model.mechanism),
        "epsilon_upper": finite(model.mechanism.epsilon(delta).upper),
        "noise_seed": ledger["noise_seed"],
    }


def _summarise(
    folder: RunFolder, certificate: dict[str, Any], candidates: Candidates, parameters: Arrays
) -> dict[str, float | None]:
    accuracy, loss = candidates.prepared.evaluate(parameters)
    final = {"accuracy": accuracy, "loss": finite(loss)}
    write_json(
        folder.summary,
        {
            "name": folder.path.name,
            "final": final,
            "epsilon": certificate["epsilon"],
            "delta": certificate["delta"],
            "method": certificate["method"],
            "parameters": sum(array.size for array in parameters.values()),
            "stopped_because": "merged",
        },
    )
    return final


def _picture(folder: RunFolder, request: MergeRequest, candidates: Candidates, decision: Decision) -> None:
    picture = epsilon_over_weights(
        [model.name for model in candidates.models],
        decision.epsilons,
        (request.epsilon, request.delta),
        decision.weights,
        logarithmic=request.method == RANDOM_SELECTION,
    )
    if picture is not None:
        folder.plots.mkdir()
        style.save(picture, folder.plots / "epsilon-over-weights.png")
