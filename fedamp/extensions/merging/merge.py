"""Merge finished runs within a budget, and write a folder with the merged model and its certificate.

:func:`merge_runs` is the place to begin. The weights come from :mod:`fedamp.extensions.merging.weights`, the files'
formats from :mod:`fedamp.extensions.merging.merged`. The certificate is on the disk before the model.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedamp import rng
from fedamp.accounting.arithmetic import delta_left
from fedamp.accounting.verify import FROM_SYSTEM
from fedamp.base.files import write_secret
from fedamp.base.version import version
from fedamp.extensions.merging.candidates import MergeCandidates, MergeError, read_candidates
from fedamp.extensions.merging.merged import (
    CERTIFICATE,
    MergeCertificate,
    MergedInput,
    MergedSummary,
    ModelDraw,
    salted_digest,
)
from fedamp.extensions.merging.weights import RANDOM_SELECTION, ChosenWeights, MergeRequest, combine, select
from fedamp.runs.folder import RunFolder, new_folder
from fedamp.runs.ledger import digest
from fedamp.runs.records import EVALUATED, NOT_EVALUATED, Bracket, Quality, measured

GIVEN_SEED = "given, so known: it may have been chosen for its draw"
ASSUMPTIONS = (
    "Only the merged model is released: nothing else of its inputs, and no second merger of them. Otherwise the costs "
    "add up.",
    "The inputs were trained on the same units' data, which did not change between the runs.",
    "The choice of the runs, and of the rounds at which they were taken or stopped, does not depend on their models.",
)


@dataclass(frozen=True)
class MergeResult:
    """The result of a merger.

    Attributes:
        candidates: the models that went in.
        folder: that was written.
        certificate: of the merged model.
        final: quality of the merged model on the public test set.
    """

    candidates: MergeCandidates
    folder: RunFolder
    certificate: MergeCertificate
    final: Quality

    def to_json(self) -> dict[str, Any]:
        """Return the certificate with ``folder`` and ``final``; ``unprotected`` is for the owner alone."""
        return self.certificate.content() | {
            "folder": str(self.folder.path),
            "final": self.final.content(),
            "unprotected": {"accuracies": list(self.candidates.accuracies)},
        }


def merge_runs(request: MergeRequest, out: Path | None = None) -> MergeResult:
    """Merge trained models for a new budget.

    The folder holds ``model.safetensors``, ``certificate.json`` (to publish with the model), ``summary.json`` and
    ``salt.secret`` (proves to an auditor which ledgers the certificate refers to).

    Args:
        request: models, method and budget.
        out: the new folder; default: a new one under ``runs``.

    Raises:
        MergeError: the models cannot be merged, or not within the budget.
        RunFolderError: an input is missing or damaged, or ``out`` is not empty.
    """
    candidates = read_candidates(request.models)
    selects = request.method == RANDOM_SELECTION
    paid = replace(request, delta=delta_left(request.delta))
    decision = (select if selects else combine)(paid, candidates)
    if decision.epsilon.upper > request.epsilon:
        raise MergeError(
            f"weights {', '.join(f'{weight:.6g}' for weight in decision.weights)} cost epsilon = "
            f"{decision.epsilon.upper:.6g} at delta = {request.delta:g}, more than the budget of {request.epsilon:g}"
        )
    folder, _ = new_folder(out, "merged")
    # A ledger names its models' digests. With an unsalted digest of the ledger, anyone could test a guess of a model
    # without noise.
    salt = f"{rng.seed_from_system():064x}"
    write_secret(folder.salt, salt)
    if selects:
        seed = rng.seed_from_system() if request.seed is None else request.seed
        model = candidates.models[draw(decision.weights, seed)]
        parameters = model.parameters
        drawn = ModelDraw(
            model=model.label, seed=str(seed), seed_source=FROM_SYSTEM if request.seed is None else GIVEN_SEED
        )
    else:
        parameters, drawn = candidates.combined(decision.weights), None
    certificate = _write_certificate(request, candidates, decision, drawn, digest(parameters), salt.encode())
    certificate.write(folder.path / CERTIFICATE)  # as with a ledger, before the release
    folder.write_model(parameters)
    is_evaluated = candidates.prepared.evaluate_every > 0
    final = Quality(**measured(*(candidates.prepared.evaluate(parameters) if is_evaluated else (None, {}))))
    MergedSummary(
        name=folder.path.name,
        final=final,
        epsilon=certificate.epsilon,
        delta=request.delta,
        method=request.method,
        parameters=sum(array.size for array in parameters.values()),
    ).write(folder.summary)
    return MergeResult(candidates, folder, certificate, final)


def draw(weights: Sequence[float], seed: int) -> int:
    """Draw the index of the model that a random selection releases, with exactly these weights; never one of weight 0.

    Raises:
        ValueError: the sum of the weights is not exactly 1 (:func:`fedamp.extensions.merging.weights.exact`).
    """
    below = list(accumulate(map(Fraction, weights)))
    if below[-1] != 1:
        raise ValueError(f"weights must sum to 1 exactly, got {float(below[-1])!r}")
    point = Fraction(int.from_bytes(rng.stream(seed, "merge").words(4).tobytes()), 2**256)
    return bisect_right(below, point)


def _write_certificate(
    request: MergeRequest,
    candidates: MergeCandidates,
    decision: ChosenWeights,
    drawn: ModelDraw | None,
    model: str,
    salt: bytes,
) -> MergeCertificate:
    """Make the certificate, to publish with the model; nothing in it depends on models that are not released."""
    inputs, ledgers = [], [candidate.run.ledger for candidate in candidates.models]
    common = [sentence for sentence in ledgers[0].assumptions if sentence not in (EVALUATED, NOT_EVALUATED)]
    common.append(EVALUATED if candidates.prepared.evaluate_every else NOT_EVALUATED)
    for candidate, ledger in zip(candidates.models, ledgers, strict=True):
        record = MergedInput(
            name=candidate.label,
            scenario=ledger.scenario,
            scenario_sha256=ledger.scenario_sha256,
            ledger_sha256_with_salt=salted_digest(salt, candidate.run),
            round=candidate.round,
            rounds_planned=ledger.rounds_planned,
            mechanism_in_words=str(candidate.mechanism),
            epsilon_upper=candidate.mechanism.epsilon(request.delta).upper,
            noise_seed=ledger.noise_seed,
        )
        inputs.append(record)
    return MergeCertificate(
        format="fedamp merge certificate 1",
        written_by=f"fedamp {version()}",
        method=request.method,
        unit=ledgers[0].unit,
        units=ledgers[0].units,
        group_size=ledgers[0].group_size,
        adjacency=ledgers[0].adjacency,
        delta=request.delta,
        budget_epsilon=request.epsilon,
        epsilon=Bracket.of(decision.epsilon),
        epsilon_bound=decision.epsilon.method,
        mechanism=decision.mechanism,
        mechanism_in_words=str(decision.mechanism),
        weights=decision.weights,
        weights_chosen_by=decision.chosen_by,
        best_weights_by_accounting=decision.best,
        inputs=tuple(inputs),
        draw=drawn,
        has_known_seed=request.seed is not None or any(ledger.has_known_seed for ledger in ledgers),
        model_sha256=model,
        assumptions=(*ASSUMPTIONS, *decision.assumptions, *common),
    )
