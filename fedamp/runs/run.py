"""Reading the folders of runs and of other released models: scenario, releases, cost."""

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

    Attributes:
        page: template of its page.
        templates: package whose folder ``templates`` has that template; None: the one that makes pages.
    """

    page: ClassVar[str]
    templates: ClassVar[str | None] = None
    name: str
    folder: Path
    summary: Any  # with final, epsilon and stopped_because

    @property
    @abstractmethod
    def stated(self) -> Charged:
        """The file that states its guarantee."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The scenario, or those of its parts."""

    @property
    @abstractmethod
    def score(self) -> Score | None:
        """The leading metric on the public test set; None if it was not evaluated."""

    @property
    @abstractmethod
    def epsilon(self) -> float | None:
        """Upper end of its guarantee; None (infinite) without noise."""

    @property
    @abstractmethod
    def has_known_seed(self) -> bool:
        """Whether the noise follows from a seed that others may know."""

    @property
    def merged_by(self) -> str | None:
        """The method, if it is made of other models."""
        return None

    @property
    def is_private(self) -> bool:
        """Whether noise was added at all."""
        return self.epsilon is not None

    @property
    def promise(self) -> dict[str, Any]:
        """Delta, unit, adjacency and group size of the guarantee."""
        return self.stated.promise

    def cautions(self, runs: "Sequence[Run]") -> list[str]:
        """Why its guarantee may not hold beside these runs."""
        return []


@dataclass(frozen=True)
class Run(ReleasedModel):
    """A run that has ended and has released at least one round: read only."""

    page: ClassVar[str] = "run.html.j2"

    name: str
    folder: Path
    scenario: Scenario
    summary: Summary
    ledger: LedgerRecord
    rounds: list[RoundRecord]

    @property
    def files(self) -> RunFolder:
        """The files in the folder."""
        return RunFolder(self.folder)

    @cached_property
    def plan(self) -> Plan:
        """The plan that was played."""
        return plan_of(self.ledger, self.scenario)

    @property
    def evaluated(self) -> list[RoundRecord]:
        """The rounds whose model was evaluated on the public test set."""
        return [record for record in self.rounds if record.score is not None]

    @property
    def score(self) -> Score | None:
        """The leading metric of the last evaluated model on the public test set; None if none was evaluated."""
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
        """Whether it ended before the round that was planned as the last one."""
        return self.summary.stopped_because not in ENDED

    @property
    def has_known_seed(self) -> bool:
        """Whether the noise follows from a seed that others may know."""
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
        """Whether hidden randomness makes the run cheaper."""
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
        """The quality of the last evaluated model: loss, metrics by name, validation_score."""
        return qualities(self.summary.final)

    def frame(self) -> "pandas.DataFrame":
        """The rounds as a pandas frame, a row each, by ``round``; InputError without pandas.

        Columns: ``loss``, ``accuracy`` (where the task has it) and the other metrics, ``validation_score``,
        ``epsilon_upper`` (inf without noise) and ``seconds`` as float64, NaN where a round was not evaluated;
        ``scheduled`` and ``reported`` as int64. The unprotected numbers are not in it.
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
        """The model after the last released round, as a torch module in evaluation mode.

        Loads the records for the shape of an input, and imports a custom model. InputError: the data are not there,
        ``model.safetensors`` is damaged or of another shape, or the model has other frozen weights than in the run.
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
        """The last model's answers to inputs [records, *input_shape]: logits or numbers [records, outputs].

        Inputs are as ``data.transform`` leaves them (tokens: whole numbers). Raises as :meth:`model`; InputError also
        for inputs that the model cannot take.
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
        """Compute every number of the ledger again and look for changes, also of a ``head`` written down elsewhere."""
        return verify_ledger(self.folder, head)


def qualities(found: Quality) -> dict[str, float | None]:
    """What a record says of a model: loss, accuracy (where the task has it), the other metrics, validation_score."""
    accuracy = {} if found.accuracy is None else {"accuracy": found.accuracy}
    return {"loss": found.loss, **accuracy, **found.metrics, "validation_score": found.validation_score}


def frame_of(rows: Iterable[Mapping[str, Any]]) -> "pandas.DataFrame":
    """A pandas frame of rows with the same keys, which name its columns; InputError without pandas."""
    with needs_extras():
        import pandas
    return pandas.DataFrame(rows)


def read_models(folders: Sequence[Path]) -> list[ReleasedModel]:
    """Read folders of runs and of other models, each named by the shortest end of its path that is unique.

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
    """Read a run folder; ``name`` is the folder's own unless given.

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
