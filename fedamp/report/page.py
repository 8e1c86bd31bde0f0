"""A page about a run, a merged model or a comparison, in one HTML file to share.

It holds what was released and what is public, and no number computed from private data without noise.
"""

import base64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment
from matplotlib.figure import Figure

from fedamp.base.files import write_atomically
from fedamp.errors import RunFolderError
from fedamp.federation.cost import risk
from fedamp.report import style
from fedamp.report.comparison import cautions, facts
from fedamp.report.html import environment
from fedamp.report.pictures import comparison_pictures, run_pictures
from fedamp.report.tables import spread
from fedamp.runs.folder import RunFolder
from fedamp.runs.run import Run
from fedamp.runs.verify import complaint
from fedamp.studies.merging.merged import Model, read_models
from fedamp.studies.swept import run_folders

CAPTIONS = {
    "rounds": "Quality on the public test set, if there is one, and the privacy cost so far, round by round. Above one "
    "run alone stands each epsilon at the last round that it pays for.",
    "accuracy-epsilon": "Quality against privacy cost: as charged, and for the same models without amplification.",
    "cost": "Bytes that a client receives and sends when it checks in, and the wall time of the run for each check-in.",
    "epsilon-over-weights": "The cost of the weights: epsilon over the weights of the models, and the chosen weights.",
}


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of one run or merged model, or the comparison of several, to ``out``; an older page is replaced.

    Raises RunFolderError for a folder that is missing, damaged or given twice, if ``fedamp verify`` fails, or if
    ``out`` cannot be written.
    """
    models = read_models(run_folders(folders))
    checks = {model.folder: model.verify() for model in models if isinstance(model, Run)}
    for folder, found in checks.items():
        if wrong := complaint(found):
            raise RunFolderError(f"{folder}: {wrong}")
    figures = _inline(comparison_pictures(models)) if len(models) > 1 else []
    values = {"models": models, "alone": len(models) == 1, "checks": checks, "rows": list(map(facts, models))}
    template = _environment().get_template("page.html.j2")
    content = template.render(values, cautions=cautions(models), comparison_figures=figures)
    if out.is_symlink() or (out.exists() and not out.is_file()):
        raise RunFolderError(f"{out}: a link, or no file; expected: the name of an HTML file")
    write_atomically(out, content.encode(), durable=False)
    return out


def certificate(run: Run) -> str:
    """A page with what was released, and its guarantee: it may leave the server."""
    pictures = _inline(run_pictures(run))
    return _environment().get_template("certificate.html.j2").render(model=run, pictures=pictures)


def _environment() -> Environment:
    made = environment()
    made.tests["run"] = lambda model: isinstance(model, Run)
    made.globals |= {"spread": spread, "sha256": sha256, "figures_of": _figures, "interpretation": _interpretation}
    return made


def _inline(pictures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """The address and the caption of each picture."""
    return [(style.inline(picture), CAPTIONS[name]) for name, picture in pictures.items()]


def _figures(model: Model) -> list[tuple[str, str]]:
    if isinstance(model, Run):
        return _inline(run_pictures(model))
    name = "epsilon-over-weights"
    file = RunFolder(model.folder).plots / f"{name}.png"  # drawn for two and three models
    pictures = [base64.b64encode(file.read_bytes()).decode()] if file.is_file() else []
    return [(f"data:image/png;base64,{picture}", CAPTIONS[name]) for picture in pictures]


def _interpretation(model: Model) -> str:
    """The guarantee of the released models in one sentence."""
    stated = model.ledger if isinstance(model, Run) else model.certificate
    mechanism = stated.mechanism
    if isinstance(model, Run) and model.ledger.epsilon_follows:
        mechanism = mechanism.after(len(model.ledger.releases))
    return str(risk(mechanism, stated.unit, stated.group_size)["in_words"])
