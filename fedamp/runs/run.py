"""Read the folders of runs and of other released models: scenario, releases, cost.

``fedamp.open`` and the reports read through :func:`read_run` and :func:`read_models`. Nothing is written, and no code
that a scenario names is run before :meth:`Run.model` is called.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedamp.accounting.verify import ENDED, Check
from fedamp.base.devices import usual_state
from fedamp.base.numbers import at_most
from fedamp.base.text import printable
from fedamp.errors import InputError, RunFolderError, ScenarioError, needs_extras, one_line
from fedamp.federation import reader
from fedamp.federation.plan import Plan
from fedamp.federation.scenario import Scenario
from fedamp.runs.chain import altered
from fedamp.runs.folder import RunFolder, read_summary, reader_of
from fedamp.runs.ledger import plan_of
from fedamp.runs.records import Charged, LedgerRecord, Quality, RoundRecord, Score, Summary, reports
from fedamp.runs.verification import contradictions, verify_ledger

if TYPE_CHECKING:
    import pandas
    from torch import nn


class ReleasedModel(ABC):
    """A released model with its guarantee, as reports show it alone or beside others.

    Runs are such, and the merged models of an extension.

    Attributes:
        page: template of its page.
        templates: package whose folder ``templates`` has that template; None: the one that makes pages.
        name: as reports call it.
        folder: where its files lie.
        summary: with ``final``, ``epsilon`` and ``stopped_because``.
    """

    page: ClassVar[str]
    templates: ClassVar[str | None] = None
    name: str
    folder: Path
    summary: Any  # with final, epsilon and stopped_because

    @property
    @abstractmethod
    def stated(self) -> Charged:
        """File that states its guarantee."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the scenario, or those of its parts."""

    @property
    @abstractmethod
    def score(self) -> Score | None:
        """Leading metric on the public test set; None if the model was not evaluated."""

    @property
    @abstractmethod
    def epsilon(self) -> float | None:
        """Upper end of its guarantee; None (infinite) without noise."""

    @property
    @abstractmethod
    def has_known_seed(self) -> bool:
        """Say whether the noise follows from a seed that others may know."""

    @property
    def merged_by(self) -> str | None:
        """Method of merging, if the model is made of other models."""
        return None

    @property
    def is_private(self) -> bool:
        """Say whether noise was added at all."""
        return self.epsilon is not None

    @property
    def promise(self) -> dict[str, Any]:
        """Delta, unit, adjacency and group size of the guarantee."""
        return self.stated.promise

    def cautions(self, runs: "Sequence[Run]") -> list[str]:
        """List why its guarantee may not hold beside these runs."""
        return []


@dataclass(frozen=True)
class Run(ReleasedModel):
    """A run that has stopped and has released at least one round: read only.

    Attributes:
        name: the shortest end of the folder's path that tells it from others.
        folder: of the run.
        scenario: as it was run.
        summary, ledger, rounds: the contents of these files.
    """

    page: ClassVar[str] = "run.html.j2"

    name: str
    folder: Path
    scenario: Scenario
    summary: Summary
    ledger: LedgerRecord
    rounds: list[RoundRecord]

    @property
    def files(self) -> RunFolder:
        """Paths of the files in the folder."""
        return RunFolder(self.folder)

    @cached_property
    def plan(self) -> Plan:
        """Plan that was played, made again from scenario and ledger."""
        return plan_of(self.ledger, self.scenario)

    @property
    def evaluated(self) -> list[RoundRecord]:
        """Rounds whose model was evaluated on the public test set."""
        return [record for record in self.rounds if record.score is not None]

    @property
    def score(self) -> Score | None:
        """Leading metric of the last evaluated model on the public test set; None if none was evaluated."""
        return self.evaluated[-1].score if self.evaluated else None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last evaluated model; None if none was evaluated, or if the task has none."""
        return self.evaluated[-1].accuracy if self.evaluated else None

    @property
    def reported_share(self) -> float:
        """Share of the scheduled units that reported; 1 where none was scheduled."""
        scheduled, reported, _ = reports(self.rounds)
        return reported / scheduled if scheduled else 1.0

    @property
    def stated(self) -> LedgerRecord:
        return self.ledger

    @property
    def title(self) -> str:
        return self.scenario.name

    @property
    def epsilon(self) -> float | None:
        """Upper end of the guarantee, also if the releases decided an early stop; None (infinite) without noise."""
        upper = self.ledger.epsilon
        return upper if math.isfinite(upper) else None

    @property
    def was_stopped_early(self) -> bool:
        """Say whether the run ended before the round that was planned as the last one."""
        return self.summary.stopped_because not in ENDED

    @property
    def has_known_seed(self) -> bool:
        """Say whether the noise follows from a seed that others may know."""
        return self.ledger.has_known_seed

    @property
    def released_rounds_epsilon(self) -> float | None:
        """Upper end of what the released rounds cost if their number was fixed before; None without noise."""
        return self.ledger.released_rounds_epsilon if self.is_private else None

    @cached_property
    def unamplified_epsilon(self) -> float | None:
        """Upper end of the cost of the same rounds without amplification; None without noise."""
        if not self.is_private:
            return None
        last = self.plan.last_round if self.was_stopped_early else self.rounds[-1].round
        return float(self.plan.charge.unamplified_epsilon_by_round[last - 1])

    @property
    def is_amplified(self) -> bool:
        """Say whether hidden randomness makes the run cheaper."""
        return bool(self.epsilon and self.unamplified_epsilon and self.unamplified_epsilon > 1.001 * self.epsilon)

    @property
    def bytes_per_check_in(self) -> int:
        """Bytes that a client receives and sends when it checks in, without the envelope."""
        return self.summary.cost.bytes_per_check_in

    @property
    def seconds_per_check_in(self) -> float:
        """Wall time of the run over the expected number of check-ins, which is public."""
        return self.summary.wall_seconds / (self.plan.expected_cohort * len(self.rounds))

    @property
    def qualities(self) -> dict[str, float | None]:
        """Quality of the last evaluated model: loss, metrics by name, validation_score."""
        return qualities(self.summary.final)

    def frame(self) -> "pandas.DataFrame":
        """Return the rounds as a pandas frame, a row each, by ``round``.

        Columns: ``loss``, ``accuracy`` (where the task has it) and the other metrics, ``validation_score``,
        ``epsilon_upper`` (inf without noise) and ``seconds`` as float64, NaN where a round was not evaluated;
        ``scheduled`` and ``reported`` as int64. The unprotected numbers are not in it.

        Raises:
            InputError: pandas is not installed.
        """
        measured = [qualities(record) for record in self.rounds]
        names = dict.fromkeys(name for each in measured for name in each)
        others = ("epsilon_upper", "seconds", "scheduled", "reported")
        rows = [
            {"round": record.round} | dict.fromkeys(names) | each | {key: getattr(record, key) for key in others}
            for record, each in zip(self.rounds, measured, strict=True)
        ]
        return frame_of(rows).set_index("round").astype(dict.fromkeys((*names, *others[:2]), "float64"))

    @usual_state()
    def model(self) -> "nn.Module":
        """Load the model after the last released round, as a torch module in evaluation mode.

        It loads the records for the shape of an input, and imports a custom model.

        Raises:
            InputError: the data are missing, ``model.safetensors`` is damaged or of another shape, or the model has
                other frozen weights than in the run.
        """
        import torch

        from fedamp.federation.losses import records_of
        from fedamp.models.networks import build, read_parameters

        dataset = records_of(self.scenario)
        module = build(self.scenario.model, dataset.input_shape, dataset.num_classes).cpu()
        shapes = {name: value.detach().numpy() for name, value in module.named_parameters()}
        parameters = read_parameters(self.files.model, shapes)
        module.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()}, strict=False)
        return module.eval()

    @usual_state()
    def predict(self, inputs: ArrayLike, batch_size: int = 256) -> NDArray[np.float32]:
        """Answer inputs with the last model.

        Args:
            inputs: [records, *input_shape], as ``data.transform`` leaves them (tokens: whole numbers).
            batch_size: records that are computed together.

        Returns:
            Logits or numbers, float32 of shape [records, outputs].

        Raises:
            InputError: as :meth:`model`, or the model cannot take such inputs.
        """
        import torch

        from fedamp.models.networks import input_type

        module, given = self.model(), torch.as_tensor(np.asarray(inputs), dtype=input_type(self.scenario.model))
        try:
            with torch.inference_mode():
                return np.concatenate([module(block).numpy() for block in torch.split(given, batch_size)])
        except Exception as error:  # torch has no narrower one for a wrong shape
            raise InputError(f"inputs of shape {list(given.shape)}: {one_line(error)}") from None

    @usual_state()
    def verify(self, head: str | None = None) -> list[Check]:
        """Compute every number of the ledger again, and look for changes.

        Args:
            head: the ledger's head as it was written down elsewhere; default: any.
        """
        return verify_ledger(self.folder, head)


def qualities(found: Quality) -> dict[str, float | None]:
    """Return the numbers of a model in a record: loss, accuracy (if the task has it), metrics, validation_score."""
    accuracy = {} if found.accuracy is None else {"accuracy": found.accuracy}
    return {"loss": found.loss, **accuracy, **found.metrics, "validation_score": found.validation_score}


def frame_of(rows: Iterable[Mapping[str, Any]]) -> "pandas.DataFrame":
    """Make a pandas frame of rows with the same keys, which name its columns.

    Raises:
        InputError: pandas is not installed.
    """
    with needs_extras():
        import pandas
    return pandas.DataFrame(rows)


def read_models(folders: Sequence[Path]) -> list[ReleasedModel]:
    """Read folders of runs and of other models, each named by the shortest end of its path that is unique.

    Args:
        folders: each once.

    Raises:
        RunFolderError: one of them is missing, damaged, or given twice.
    """
    paths, depth = [folder.resolve() for folder in folders], 1
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise RunFolderError(f"{folders[index]}: given twice")
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    models: list[ReleasedModel] = []
    for folder, path in zip(folders, paths, strict=True):
        reader_ = reader_of(folder)
        read = reader_.read if reader_ else read_run
        models.append(read(folder, printable("/".join(path.parts[-depth:]).lstrip("/"))))
    return models


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read a run folder.

    Args:
        folder: of a run that has stopped.
        name: as reports call it; default: the folder's own.

    Raises:
        RunFolderError: one line that names the file that is missing, damaged, or changed since the run.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such run folder")
    files, summary = RunFolder(folder), read_summary(folder)
    missing = [file for file in (files.scenario, files.ledger, files.rounds) if not file.is_file()]
    if missing:
        raise RunFolderError(f"{folder}: not a run folder (no {missing[0].name})")
    ledger, rounds = LedgerRecord.read(files.ledger), files.read_rounds()
    if summary.rounds_completed == 0:
        why = f" ({summary.error})" if summary.error else ""
        left = f"; what left the server: {', '.join(ledger.has_left)}, at epsilon {at_most(ledger.epsilon)}"
        raise RunFolderError(
            f"{folder}: no round was released{why}; there is nothing to report{left if ledger.has_left else ''}"
        )
    if summary.rounds_completed != len(rounds) or len(ledger.releases) < len(rounds):
        raise RunFolderError(
            f"{folder}: damaged run folder: summary.json says {summary.rounds_completed} rounds, rounds.jsonl holds "
            f"{len(rounds)} and ledger.json {len(ledger.releases)}"
        )
    for complaint in (*contradictions(ledger, summary, rounds), *altered(files)):
        raise RunFolderError(f"{folder}: {complaint}; see fedamp verify")
    try:
        asked = reader.load(files.scenario)
    except ScenarioError as error:
        raise RunFolderError(f"damaged run folder: {error}") from None
    if ledger.frozen_sha256 is not None:  # so that only the model of the ledger is built from the scenario
        pinned = asked.model.model_copy(update={"frozen_sha256": ledger.frozen_sha256})
        asked = asked.model_copy(update={"model": pinned})
    return Run(name or folder.resolve().name, folder, asked, summary, ledger, rounds)
