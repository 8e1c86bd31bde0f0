"""A run as ``fedamp.open`` and ``fedamp.run`` return it: it shows itself."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedamp.base.files import modes_of
from fedamp.base.numbers import at_most
from fedamp.errors import InputError, fails_alone, needs_extras
from fedamp.report import notebook
from fedamp.report.tables import run_table
from fedamp.report.words import ENDINGS, score
from fedamp.runs import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedamp.report.clients import ByClient


class Run(run.Run):
    """A run with its pictures, its page, and a view for notebooks."""

    def plot(self) -> "Figure":
        """Quality and epsilon by round. Raises InputError where there is neither, or without matplotlib."""
        with needs_extras():
            from fedamp.report.pictures import run_pictures

        pictures = run_pictures(self)
        if not pictures:
            raise InputError(f"{self.folder}: no model was evaluated, and there is no epsilon: no picture")
        return pictures["rounds"]

    def by_client(self) -> "ByClient":
        """Loss and score of each client on its own test records, UNPROTECTED; see :mod:`fedamp.report.clients`."""
        from fedamp.report.clients import by_client  # which imports torch

        return by_client(self)

    def report(self, out: str | Path | None = None) -> Path:
        """Write a page to share; default: ``report.html`` in the run's folder."""
        with needs_extras():
            from fedamp.report.page import write_report

        with modes_of(self.folder):
            return write_report([self.folder], Path(out) if out else self.folder / "report.html")

    def __str__(self) -> str:
        delta = f"at delta = {self.ledger.delta:g}"
        known = f", {self.ledger.rehearsal or 'known seed'}" * self.has_known_seed
        spent = f"epsilon <= {at_most(self.epsilon)} {delta}{known}"
        spent = spent if self.is_private else "no privacy: no noise was added"
        said = self.summary
        ending = f"{self.scenario.name}: {said.rounds_completed} rounds, {ENDINGS[said.stopped_because]}"
        work = f"{said.clients_trained:,} {self.ledger.unit}s trained in {said.wall_seconds:.1f} s"
        return "\n".join([ending, score(self.score) or "not evaluated", spent, work, str(self.folder)])

    def _repr_html_(self) -> str:
        drawn = ""
        with fails_alone("drawing"):
            from fedamp.report import pictures, style

            drawn = style.all_inline(pictures.run_pictures(self))
        return notebook.as_html(run_table(self.summary)) + drawn
