"""Read a study from its file, play it, and write its table and its figure.

A study is a sweep whose first key is ``variant``: each variant is a name for several values of the scenario. So
:mod:`fedamp.extensions.tune.sweep` plays, resumes and reads it. Here are the file, the record ``study.json``, and the
files for a paper. The table is made in :mod:`fedamp.extensions.tune.tables`, the figure in
:mod:`fedamp.extensions.tune.pictures`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from matplotlib.figure import Figure
from pydantic import Field, ValidationError

from fedamp.base.files import FileRecord, write_atomically
from fedamp.base.reading import read_own
from fedamp.base.record import one_line
from fedamp.base.section import Section
from fedamp.base.text import printable
from fedamp.base.version import version
from fedamp.base.yaml_files import UNREADABLE, Loader
from fedamp.errors import ScenarioError, fails_alone
from fedamp.extensions.tune.pictures import study_picture
from fedamp.extensions.tune.results import SweepResults
from fedamp.extensions.tune.sweep import (
    BUDGET,
    REPEATED,
    VARIANT,
    RunSettings,
    Watcher,
    begun_in,
    finished_in,
    read_sweep,
    sweep,
)
from fedamp.extensions.tune.tables import study_cells, study_notes, study_rows
from fedamp.federation.scenario import Scenario
from fedamp.report import words
from fedamp.report.comparison import lines_of_csv
from fedamp.runs.folder import SeriesReader

FILE, STUDIES = "study.json", Path("studies")
LARGEST_FILE = 10**6  # bytes
TEXTS, FORMATS = ("csv", "tex", "md"), ("pdf", "svg", "png")
WITHOUT_NOISE = {BUDGET: None, "privacy.noise_multiplier": 0}
VariantName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,60}$")]


class Study(Section):
    """The content of a study's file.

    Attributes:
        scenario: a shipped name, a file (from the study's folder), or the content of one.
        variants: values of the scenario by key, for each name; a mapping with a scheme or a name is a whole section.
        grid: values to combine with each variant, by key.
        seeds: their number (1 to n), or a list of them.
        metric: that is compared; None: the leading one of the task.
        without_noise: also run each variant without noise; needs ``privacy.epsilon`` in the grid.
        unamplified: also show each point at its charge without amplification.
        caption: of the table in LaTeX; None: one is written.
    """

    scenario: str | dict[str, Any]
    variants: Annotated[dict[VariantName, dict[str, Any]], Field(min_length=1)]
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    seeds: Annotated[int, Field(ge=1, le=1000)] | Annotated[list[int], Field(min_length=1)] = 3
    metric: str | None = None
    without_noise: bool = False
    unamplified: bool = False
    caption: str | None = None

    @property
    def whole_grid(self) -> dict[str, list[Any]]:
        """Values by key, with the variants first and the seeds last; without noise the budget is None."""
        grid = {key: [*values, *[None] * (self.without_noise and key == BUDGET)] for key, values in self.grid.items()}
        seeds = list(range(1, self.seeds + 1)) if isinstance(self.seeds, int) else self.seeds
        return {VARIANT: list(self.variants), **grid, REPEATED: seeds}

    def changes_of(self, settings: RunSettings) -> dict[str, Any]:
        """Return the values of the scenario that a run's settings stand for: those of its variant, then its own."""
        own = {key: value for key, value in settings.items() if key != VARIANT}
        if self.without_noise and BUDGET in own and own[BUDGET] is None:
            own |= WITHOUT_NOISE
        return {**self.variants[settings[VARIANT]], **own} if settings else {}


class StudyRecord(FileRecord):
    """The content of ``study.json``: the study as it was asked for. The planned runs are in ``sweep.json`` beside it.

    Attributes:
        written_by: name and version of the program.
        scenario: its name.
        variants, metric, without_noise, unamplified, caption: as :class:`Study` has them.
    """

    kind: ClassVar[str] = "study"
    format: Literal["fedamp study 1"] = "fedamp study 1"
    written_by: str
    scenario: str
    variants: dict[str, dict[str, Any]]
    metric: str | None
    without_noise: bool
    unamplified: bool
    caption: str | None


class StudySource(NamedTuple):
    """A study that was read, with the place that its file names.

    Attributes:
        study: the content.
        name: of the file; of a mapping, that of its scenario.
        scenario: as :func:`fedamp.federation.reader.load` takes it; a file is found from the study's folder.
    """

    study: Study
    name: str
    scenario: str | dict[str, Any]


@dataclass(frozen=True)
class StudyResults(SweepResults):
    """A study with its table and its figure.

    Attributes:
        asked: ``study.json``.
    """

    cells, notes = staticmethod(study_cells), staticmethod(study_notes)

    asked: StudyRecord = field(kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``fedamp study --json``: that of a sweep, the table, and the words about it."""
        metric = words.metric(next((each.metric for each in self.outcomes), "score"))
        return super().to_json() | {
            "table": self.layout().to_json(),
            "guarantees": self._guarantees(),
            "caption": self.asked.caption or f"{metric.capitalize()} of {self.scenario} by variant and privacy budget",
            "label": "tab:" + re.sub(r"[^A-Za-z0-9-]+", "-", self.folder.name),
        }

    def _guarantees(self) -> list[str]:
        """Write whom the budgets protect, and why they may not hold; a line each."""
        promises = {
            f"ε is for {words.protected(run.ledger.unit, run.ledger.group_size)}, at δ = {run.ledger.delta:g}"
            f" ({run.ledger.adjacency}); it covers one run alone."
            for run in self.finished
            if run.is_private
        }
        known = [f"Seeds are known: {words.KNOWN_SEED}."] * any(run.has_known_seed for run in self.finished)
        unchecked = {run.ledger.unchecked for run in self.finished} - {"", None}
        return [*sorted(promises), *known, *sorted(map(str, unchecked))]

    def means(self) -> list[dict[str, Any]]:
        """Return a row for each variant and point: mean, ends of its 95 % interval, and cost; as in ``table.csv``."""
        return study_rows(self)

    def pictures(self) -> dict[str, Figure]:
        """Draw the figure; none where no run has a score."""
        scored = any(each.score for each in self.outcomes)
        return {"figure": study_picture(self, self.asked.unamplified)} if scored else {}

    @property
    def files(self) -> list[Path]:
        """Files of the table and the figure that were written."""
        names = [*(f"table.{ending}" for ending in TEXTS), *(f"figure.{ending}" for ending in FORMATS)]
        return [self.folder / name for name in names if (self.folder / name).is_file()]

    def write(self) -> None:
        """Write ``table.csv``, ``.tex`` and ``.md`` and, where a run has a score, ``figure.pdf``, ``.svg``, ``.png``.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        for ending, text in zip(TEXTS, (lines_of_csv(self.means()), self.latex(), self.markdown()), strict=True):
            write_atomically(self.folder / f"table.{ending}", text.encode())
        with fails_alone("drawing"):
            self.save_pictures(self.folder, FORMATS, paper=True)


def read_study(source: str | Path | Mapping[str, Any]) -> StudySource:
    """Read and check the file of a study, or its content.

    Raises:
        ScenarioError: one line with the file, the key, and what is expected.
    """
    file = None if isinstance(source, Mapping) else Path(source)
    try:
        raw = dict(source) if isinstance(source, Mapping) else Loader(read_own(Path(source), LARGEST_FILE)).get_data()
    except OSError as error:
        raise ScenarioError(f"{source}: cannot be read ({error.strerror}); expected: the file of a study") from None
    except UNREADABLE as error:
        raise ScenarioError(printable(f"{source}: not valid YAML: {' '.join(str(error).split())}")) from None
    where = str(file or "study")
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError(printable(f"{where}: {one_line(error)}; expected: {KEYS}")) from None
    for name, values in study.variants.items():
        if twice := sorted((values.keys() & study.grid.keys()) | (values.keys() & {REPEATED})):
            raise ScenarioError(printable(f"{where}: {twice[0]}: in variant {name} and in the grid; expected: one"))
    if study.without_noise and BUDGET not in study.grid:
        raise ScenarioError(f"{where}: without_noise: expected with it: {BUDGET} in the grid")
    if VARIANT in study.grid or REPEATED in study.grid:
        raise ScenarioError(f"{where}: grid: expected: keys of a scenario; variants and seeds have keys of their own")
    scenario = study.scenario
    if file and isinstance(scenario, str) and (file.parent / scenario).is_file():
        scenario = str(file.parent / scenario)
    return StudySource(study, file.stem if file else "study", scenario)


KEYS = ", ".join(Study.model_fields)


def play_study(
    source: StudySource,
    load: Callable[[Mapping[str, Any]], Scenario],
    out: Path | None = None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> StudyResults:
    """Play the runs of a study that have not finished, and write its table and figure.

    Args:
        source: the study.
        load: gives its scenario with some values changed.
        out: folder; default: ``studies/NAME``. Finished runs are kept, so a study can get further variants.
        jobs, watcher: as :func:`fedamp.extensions.tune.functions.sweep` takes them.

    Raises:
        InputError: nothing was run; one line names the fault.
        Interrupted: Ctrl-C; the same call resumes the study.
    """
    study, folder = source.study, out or STUDIES / source.name

    def record(scenario: str) -> StudyRecord:
        asked = study.model_dump(mode="json", include=set(StudyRecord.model_fields) - {"scenario"})
        return StudyRecord(written_by=f"fedamp {version()}", scenario=scenario, **asked)

    swept = sweep(
        lambda settings: load(study.changes_of(settings)),
        study.whole_grid,
        folder,
        jobs,
        watcher,
        lambda scenario: record(scenario).write(folder / FILE),
    )
    errors = {each.folder.name: each.error for each in swept.unfinished if each.error}
    results = read_results(folder, errors)
    results.write()
    return results


def read_results(folder: Path, errors: Mapping[str, str] | None = None) -> StudyResults:
    """Read the folder of a study.

    Args:
        folder: of the study.
        errors: why runs did not finish, by the names of their folders.

    Raises:
        RunFolderError: it is damaged.
    """
    asked = StudyRecord.read(folder / FILE)
    read = read_sweep(folder, errors)
    return StudyResults(read.folder, read.scenario, read.grid, read.runs, asked.metric, asked=asked)


SERIES = SeriesReader(read_results, finished_in, begun_in)
