"""Reading what ``fedamp merge`` leaves: one model, made of several runs' models, and its certificate."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedamp.errors import RunFolderError
from fedamp.runs.run import Run, names_of, read_run
from fedamp.runs.folder import RunFolder, read_summary

CERTIFICATE, FORMAT = "certificate.json", "fedamp merge certificate 1"


@dataclass(frozen=True)
class Merged:
    """A merged model.

    Attributes:
        name: what tells it from the other models of a report.
        folder: where it is.
        summary: ``summary.json``.
        certificate: ``certificate.json``: what the model costs, and on which assumptions.
    """

    name: str
    folder: Path
    summary: dict[str, Any]
    certificate: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """Accuracy of the released model on the public test set."""
        return float(self.summary["final"]["accuracy"])

    @property
    def epsilon(self) -> float:
        """Upper end of what releasing this model, and nothing else of its inputs, costs."""
        return float(self.certificate["epsilon"]["upper"])

    @property
    def is_private(self) -> bool:
        """Always: a merger keeps a finite budget, also with inputs without privacy."""
        return True

    @property
    def promise(self) -> dict[str, Any]:
        """What is protected, in which sense: delta, unit, adjacency, group size."""
        return {key: self.certificate[key] for key in ("delta", "unit", "adjacency", "group_size")}

    @property
    def method(self) -> str:
        """``random selection`` or ``linear combination``."""
        return str(self.certificate["method"]).replace("-", " ")

    @cached_property
    def _salt(self) -> bytes | None:
        file = self.folder / "salt.secret"
        return file.read_bytes() if file.is_file() else None

    def is_made_of(self, run: Run) -> bool:
        """Whether a model of this run went into it; known only where the merged model's salt is at hand."""
        if self._salt is None:
            return False
        digest = hashlib.sha256(self._salt + RunFolder(run.folder).ledger.read_bytes()).hexdigest()
        return digest in {model["ledger_sha256_with_salt"] for model in self.certificate["inputs"]}


Model = Run | Merged
"""What a report can be about."""


def read_models(folders: Sequence[Path]) -> list[Model]:
    """Read folders of runs and of merged models, named by as much of their paths as tells them apart.

    Raises:
        RunFolderError: one of them is missing, damaged, or given twice.
    """
    return [
        read_merged(folder, name) if (folder / CERTIFICATE).is_file() else read_run(folder, name)
        for folder, name in zip(folders, names_of(folders), strict=True)
    ]


def read_merged(folder: Path, name: str | None = None) -> Merged:
    """Read the folder of a merged model; ``name`` is the folder's own unless given.

    Raises:
        RunFolderError: one line that names the file that is missing or damaged.
    """
    summary, file = read_summary(folder), folder / CERTIFICATE
    try:
        certificate = json.loads(file.read_text(encoding="utf-8"))
        if certificate["format"] != FORMAT:
            raise ValueError(f"format {certificate['format']!r}; accepted: {FORMAT!r}")
        merged = Merged(name or folder.resolve().name, folder, summary, certificate)
        _check(merged)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RunFolderError(f"{file}: damaged certificate ({type(error).__name__}: {error})") from None
    return merged


def _check(merged: Merged) -> None:
    """Touch what reports use, so that a damaged folder is refused here rather than half-way through a report."""
    certificate = merged.certificate
    if merged.summary["epsilon"] != certificate["epsilon"]:
        raise ValueError("summary.json has another epsilon")
    if not len(certificate["inputs"]) == len(certificate["weights"]) >= 2:
        raise ValueError(f"{len(certificate['inputs'])} inputs, {len(certificate['weights'])} weights")
    merged.accuracy, merged.epsilon, merged.promise, merged.method  # noqa: B018
    for key in ("units", "epsilon_bound", "mechanism_in_words", "weights_chosen_by", "rehearsal", "budget_epsilon"):
        certificate[key]
    for model in certificate["inputs"]:
        for key in ("name", "scenario", "epsilon_upper", "ledger_sha256_with_salt"):
            model[key]
    list(certificate["assumptions"]), certificate["draw"], certificate["model_sha256"]
