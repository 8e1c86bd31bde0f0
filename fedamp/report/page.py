"""A report of a run, a merged model or a comparison that a person can send to a colleague, in one HTML file.

It needs nothing else. It holds what was released and what is public, and no number computed from private data without
noise.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from fedamp import __version__
from fedamp.base.numbers import amount_of_bytes, amount_of_time, at_least, at_most, power
from fedamp.errors import InputError, RunFolderError
from fedamp.federation.cost import risk
from fedamp.report import style
from fedamp.report.board import board
from fedamp.report.comparison import cautions, facts
from fedamp.report.pictures import comparison_pictures, run_pictures
from fedamp.report.tables import spread
from fedamp.report.words import ENDINGS, KNOWN_SEED, common, metric, protected, score, value_of
from fedamp.runs.checks import complaint
from fedamp.runs.folder import RunFolder
from fedamp.runs.merged import Model, read_models
from fedamp.runs.records import Score
from fedamp.runs.run import Run
from fedamp.studies.sweeps.results import run_folders

ROUNDS_SHOWN = 10
CAPTIONS = {
    "rounds": "Quality on the public test set, and the privacy cost so far, round by round.",
    "accuracy-epsilon": "Quality against its privacy cost: as it was charged, and what the same models would have "
    "cost unamplified, had nothing been hidden.",
    "cost": "What a client receives and sends when it checks in, and the wall time of the run for each check-in.",
    "epsilon-over-weights": "What the weights cost: epsilon over the weights of the models, and the weights that were "
    "taken.",
}

Figures = list[tuple[str, str]]
"""Pictures as a page holds them: address and caption."""


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of one run or merged model, or the comparison of several.

    Args:
        folders: of runs, and of what ``fedamp merge`` left.
        out: the HTML file; one that is there is replaced.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice, or ``fedamp verify`` finds it wrong.
        InputError: ``out`` cannot be written.
    """
    models = read_models(run_folders(folders))
    checks = {model.folder: model.verify() for model in models if isinstance(model, Run)}
    for folder, found in checks.items():
        if wrong := complaint(found):
            raise RunFolderError(f"{folder}: {wrong}")
    page = _environment().get_template("page.html.j2")
    content = page.render(
        models=models,
        alone=len(models) == 1,
        checks=checks,
        rows=list(map(facts, models)),
        cautions=cautions(models),
        comparison_figures=_inline(comparison_pictures(models)) if len(models) > 1 else [],
    )
    try:
        out.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    return out


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedamp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "at_most": at_most,
        "at_least": at_least,
        "power": power,
        "thousands": "{:,}".format,
        "bytes": amount_of_bytes,
        "seconds": amount_of_time,
        "sha256": lambda content: hashlib.sha256(content).hexdigest(),
        "score": score,
        "value": lambda found: "" if found is None else value_of(*found),
        "percent": lambda share: "" if share is None else f"{share:.1%}",
    }
    environment.tests["run"] = lambda model: isinstance(model, Run)
    environment.globals |= {
        "version": __version__,
        "endings": ENDINGS,
        "known_seed": KNOWN_SEED,
        "protected": protected,
        "figures_of": _figures,
        "released_rounds": _released_rounds,
        "risk_in_words": _risk_in_words,
        "board": lambda run: board(run, _risk_in_words(run) if run.is_private else ""),
        "metric": metric,
        "common": common,
    }
    return environment


def _inline(pictures: Mapping[str, Figure]) -> Figures:
    return [(style.inline(picture), CAPTIONS[name]) for name, picture in pictures.items()]


def _figures(model: Model) -> Figures:
    if isinstance(model, Run):
        return _inline(run_pictures(model))
    name = "epsilon-over-weights"
    file = RunFolder(model.folder).plots / f"{name}.png"
    if not file.is_file():  # it is drawn for two and three models
        return []
    return [("data:image/png;base64," + base64.b64encode(file.read_bytes()).decode(), CAPTIONS[name])]


def _risk_in_words(model: Model) -> str:
    """For the people concerned: of what was released."""
    if isinstance(model, Run):
        stated, released = model.ledger, len(model.ledger.releases)
        mechanism = stated.mechanism.after(released) if stated.epsilon_follows else stated.mechanism
        return str(risk(mechanism, stated.unit, stated.group_size)["in_words"])
    certificate = model.certificate
    return str(risk(certificate.mechanism, certificate.unit, certificate.group_size)["in_words"])


def _released_rounds(run: Run) -> list[tuple[int, Score | None, float, str]]:
    """Some of the ledger's releases: round, metric that leads, epsilon spent, digest."""
    quality = {record.round: record.score for record in run.evaluated}
    return [
        (release.round, quality.get(release.round), release.epsilon_upper, release.digest)
        for release in spread(run.ledger.releases, ROUNDS_SHOWN)
    ]
