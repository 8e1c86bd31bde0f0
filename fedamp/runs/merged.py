"""Reading what ``fedamp merge`` leaves: one model, made of several runs' models, and its certificate."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedamp.errors import RunFolderError
from fedamp.runs.folder import RunFolder
from fedamp.runs.records import Certificate, MergedSummary
from fedamp.runs.run import Run, names_of, read_run


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
    summary: MergedSummary
    certificate: Certificate

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the released model on the public test set."""
        return self.summary.final.accuracy

    @property
    def epsilon(self) -> float:
        """Upper end of what releasing this model, and nothing else of its inputs, costs."""
        return self.certificate.epsilon.upper

    @property
    def is_private(self) -> bool:
        """Always: a merger keeps a finite budget, also with inputs without privacy."""
        return True

    @property
    def promise(self) -> dict[str, Any]:
        """What is protected, in which sense: delta, unit, adjacency, group size."""
        return {key: getattr(self.certificate, key) for key in ("delta", "unit", "adjacency", "group_size")}

    @property
    def method(self) -> str:
        """``random selection`` or ``linear combination``."""
        return self.certificate.method.replace("-", " ")

    def is_made_of(self, run: Run) -> bool:
        """Whether a model of this run went into it; known only where the merged model's salt is at hand."""
        file = RunFolder(self.folder).salt
        if not file.is_file():
            return False
        digest = salted_digest(file.read_bytes(), run)
        return digest in {model.ledger_sha256_with_salt for model in self.certificate.inputs}


Model = Run | Merged
"""What a report can be about."""


def salted_digest(salt: bytes, run: Run) -> str:
    """SHA-256 of a salt followed by a run's ledger: it tells which run it is to whoever has both, and nobody else."""
    return hashlib.sha256(salt + run.files.ledger.read_bytes()).hexdigest()


def read_models(folders: Sequence[Path]) -> list[Model]:
    """Read folders of runs and of merged models, named by as much of their paths as tells them apart.

    Raises:
        RunFolderError: one of them is missing, damaged, or given twice.
    """
    return [
        read_merged(folder, name) if RunFolder(folder).certificate.is_file() else read_run(folder, name)
        for folder, name in zip(folders, names_of(folders), strict=True)
    ]


def read_merged(folder: Path, name: str | None = None) -> Merged:
    """Read the folder of a merged model; ``name`` is the folder's own unless given.

    Raises:
        RunFolderError: one line that names the file that is missing or damaged.
    """
    files = RunFolder(folder)
    summary, certificate = MergedSummary.read(files.summary), Certificate.read(files.certificate)
    if summary.epsilon != certificate.epsilon:
        raise RunFolderError(f"{files.certificate}: damaged certificate: summary.json has another epsilon")
    return Merged(name or folder.resolve().name, folder, summary, certificate)
