"""Reading the folders of runs: what was asked for, what was released, and what that cost."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp import rng
from fedamp.errors import InputError, RunFolderError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.plan import Plan, make_plan
from fedamp.federation.scenario import Scenario
from fedamp.runs.chain import altered
from fedamp.runs.checks import Check
from fedamp.runs.files import modes_of
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.runs.records import LedgerRecord, RoundRecord, Score, Summary, reports

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

TOLERANCE = 1e-6  # relative: sums come out in another order on another machine, and a text has so many digits
BYTES_DOWN, BYTES_UP = 4, 8  # a parameter travels as float32 to a client, its update as float64 back


@dataclass(frozen=True)
class Run:
    """A run that has released a round at least, and has ended, by itself or because it was told to."""

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
        """The plan as it was played: with the noise of the ledger, so that nothing is calibrated again."""
        noise = {"noise_multiplier": self.ledger.claim.noise_multiplier}
        privacy = self.scenario.privacy.model_copy(update=noise)
        return make_plan(self.scenario.model_copy(update={"privacy": privacy}), self.ledger.units)

    @property
    def evaluated(self) -> list[RoundRecord]:
        """The rounds whose model was evaluated on the public test set."""
        return [record for record in self.rounds if record.score is not None]

    @property
    def score(self) -> Score | None:
        """The metric that leads, of the last evaluated model on the public test set; None where none was."""
        return self.evaluated[-1].score if self.evaluated else None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last evaluated model; None where none was, or where the task has none."""
        return self.evaluated[-1].accuracy if self.evaluated else None

    @property
    def reported_share(self) -> float:
        """Share of the scheduled units that reported, over the run; 1 where none was scheduled."""
        scheduled, reported, _ = reports(self.rounds)
        return reported / scheduled if scheduled else 1.0

    @property
    def promise(self) -> dict[str, Any]:
        """What is protected, in which sense: delta, unit, adjacency, group size."""
        return {key: getattr(self.ledger, key) for key in ("delta", "unit", "adjacency", "group_size")}

    @property
    def is_private(self) -> bool:
        """Whether noise was added at all."""
        return self.epsilon is not None

    @cached_property
    def epsilon(self) -> float | None:
        """Upper end of what is guaranteed; None (infinite) without noise.

        Of a run that was stopped early this is what all its rounds would have cost: whoever stopped it may have seen
        what it had released.
        """
        older = self.ledger.guaranteed_epsilon is None and self.was_stopped_early
        upper = self.plan.guaranteed_epsilon.upper if older else self.ledger.claim.epsilon
        return upper if math.isfinite(upper) else None

    @property
    def was_stopped_early(self) -> bool:
        """Whether it ended otherwise than was decided before it began."""
        return self.summary.stopped_because not in ("finished", "budget")

    @property
    def has_known_seed(self) -> bool:
        """Whether the noise follows from a seed that others may know."""
        return self.ledger.has_known_seed

    @property
    def released_rounds_epsilon(self) -> float | None:
        """Upper end of what the released rounds cost, had their number been fixed before; None without noise."""
        return self.ledger.claim.released_rounds_epsilon if self.is_private else None

    @cached_property
    def unamplified_epsilon(self) -> float | None:
        """Upper end of what the same guarantee would have cost had nothing been hidden; None without noise."""
        if not self.is_private:
            return None
        last = self.plan.last_round if self.was_stopped_early else self.rounds[-1].round
        return float(self.plan.unamplified_epsilon_by_round[last - 1])

    @property
    def is_amplified(self) -> bool:
        """Whether hidden randomness makes the run cheaper than it would be otherwise."""
        return bool(self.epsilon and self.unamplified_epsilon and self.unamplified_epsilon > 1.001 * self.epsilon)

    @property
    def bytes_per_check_in(self) -> int:
        """What a client receives and sends when it checks in, without the envelope."""
        return round(self.summary.cost.parameters_per_client * (BYTES_DOWN + BYTES_UP))

    @property
    def seconds_per_check_in(self) -> float:
        """Wall time of the run over the expected number of check-ins, which is public."""
        return self.summary.wall_seconds / (self.plan.expected_cohort * len(self.rounds))

    def frame(self) -> "pandas.DataFrame":
        """The rounds as a pandas frame, one row a round, without the unprotected numbers.

        Raises:
            InputError: pandas is not installed.
        """
        left_out = {"version", "unprotected", "metrics"}
        rows = [record.model_dump(exclude=left_out) | record.metrics for record in self.rounds]
        return frame_of(rows).set_index("round")

    def model(self) -> "nn.Module":
        """The model after the last released round, as a torch module in evaluation mode.

        Its records are loaded for the shape of an input; a model of one's own is imported.

        Raises:
            InputError: the data are not there; ``model.safetensors`` is damaged or of another shape; or the model has
                other frozen weights than in the run.
        """
        import torch

        from fedamp import data
        from fedamp.federation.losses import form_of
        from fedamp.models.registry import build, initial_parameters

        seed = rng.public_seed(self.scenario.seed, "data")
        dataset = data.load(self.scenario.data, seed, Path(), form_of(self.scenario.client, self.scenario.model))
        released = self.scenario.model.model_copy(update={"initial": str(self.files.model.resolve())})
        parameters = initial_parameters(released, dataset.input_shape, dataset.num_classes, seed)
        module = build(self.scenario.model, dataset.input_shape, dataset.num_classes).cpu()
        module.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()}, strict=False)
        return module.eval()

    def plot(self, name: str = "rounds") -> "Figure":
        """A picture: ``rounds`` (accuracy and epsilon by round) or ``accuracy-epsilon`` (accuracy against its cost).

        Raises:
            InputError: there is none of that name.
        """
        from fedamp.report.pictures import run_pictures

        pictures = run_pictures(self)
        if name not in pictures:
            raise InputError(f"{self.folder}: no picture {name}; expected here: {', '.join(pictures) or 'none'}")
        return pictures[name]

    def report(self, out: str | Path | None = None) -> Path:
        """Write a page about the run that can be sent to a colleague; left out: ``report.html`` in its folder."""
        from fedamp.report.page import write_report

        with modes_of(self.folder):
            return write_report([self.folder], Path(out) if out else self.folder / "report.html")

    def verify(self, head: str | None = None) -> list[Check]:
        """Compute every number of the ledger again, and look for what was altered; each is fine, a caution, or wrong.

        Args:
            head: of the ledger's chain, as somebody wrote it down.
        """
        from fedamp.runs.verify import verify_ledger

        return verify_ledger(self.folder, head)

    def _repr_html_(self) -> str:
        from fedamp.report import notebook, style, tables
        from fedamp.report.pictures import run_pictures

        pictures = [f'<img src="{style.inline(picture)}">' for picture in run_pictures(self).values()]
        return notebook.as_html(tables.run_table(self.summary)) + "".join(pictures)


def frame_of(rows: Iterable[Mapping[str, Any]]) -> "pandas.DataFrame":
    """A pandas frame of rows with the same keys, which name its columns.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise InputError("frame() needs pandas, which is not installed; expected: pip install pandas") from None
    return pandas.DataFrame(rows)


def contradictions(ledger: LedgerRecord, summary: Summary | None, rounds: Sequence[RoundRecord]) -> Iterator[str]:
    """Where the files beside a ledger say otherwise than it does of what was guaranteed and spent: file, key, both."""
    for key, found in ledger.claim:
        said = getattr(summary.claim, key) if summary else None
        if said != found and None not in (said, found):  # an older file does not say all
            yield f"summary.json: {key}: {said}, but ledger.json says {found}"
    for record, entry in zip(rounds, ledger.releases, strict=False):
        # Another version, or machine, that went on with a run may have charged a little more.
        if record.epsilon_upper < entry.epsilon_upper * (1 - TOLERANCE):
            said = f"epsilon_upper: {record.epsilon_upper}, but ledger.json says {entry.epsilon_upper}"
            yield f"rounds.jsonl: round {record.round}: {said}"


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read a run folder; ``name`` is the folder's own unless given.

    Raises:
        RunFolderError: one line that names the file that is missing, damaged, or not as the run left it.
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
        raise RunFolderError(f"{folder}: no round was released{why}; there is nothing to report")
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
    if ledger.frozen_sha256 is not None:  # whatever is built from the scenario is held against the ledger
        pinned = asked.model.model_copy(update={"frozen_sha256": ledger.frozen_sha256})
        asked = asked.model_copy(update={"model": pinned})
    return Run(name or folder.resolve().name, folder, asked, summary, ledger, rounds)
