"""A report of a run, a merged model or a comparison that a person can send to a colleague, in one HTML file.

It needs nothing else. It holds what was released and what is public, and no number computed from private data without
noise.
"""

import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedamp import __version__
from fedamp.errors import InputError
from fedamp.numbers import amount_of_bytes, amount_of_time, at_least, at_most
from fedamp.report import html, style
from fedamp.report.compare import cautions
from fedamp.report.comparison_plots import comparison_pictures
from fedamp.report.merged_page import merged_section
from fedamp.report.page_style import CSS
from fedamp.report.plots import protection, run_pictures
from fedamp.runs.folder import RunFolder
from fedamp.runs.merged import Model, read_models
from fedamp.runs.run import Run

ROUNDS_SHOWN = 10
CAPTIONS = {
    "rounds": "Accuracy on the public test set, and the privacy cost so far, round by round.",
    "accuracy-epsilon": "Accuracy against its privacy cost: as it was charged, and what the same models would have "
    "cost had nothing been hidden.",
    "cost": "What a client receives and sends when it checks in, and the wall time of the run for each check-in.",
}
ENDINGS = {
    "finished": "finished",
    "budget": "stopped before the round that would have exceeded the budget",
    "interrupted": "interrupted; it can be resumed",
    "failed": "failed; it can be resumed",
}


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of one run or merged model, or the comparison of several.

    Args:
        folders: of runs, and of what ``fedamp merge`` left.
        out: the HTML file; one that is there is replaced.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice.
        InputError: ``out`` cannot be written.
    """
    models = read_models(folders)
    alone = len(models) == 1
    sections = [] if alone else [_comparison(models)]
    sections += [_run(model, alone) if isinstance(model, Run) else merged_section(model, alone) for model in models]
    title = _title(models[0]) if alone else _how_many(models)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + f"\n<footer>Made by fedamp {__version__} from the run folders. Apart from timings it holds only what was "
        "released and what is public.</footer>\n</main>\n</body>\n</html>\n"
    )
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    return out


def _comparison(models: Sequence[Model]) -> str:
    head = ("run", "accuracy", "ε", "ε without amplification", "noise multiplier", "rounds", "bytes", "time")
    parts = [f"<h1>{_how_many(models)}</h1>"]
    parts += [f'<p class="caution">Caution: {escape(caution)}.</p>' for caution in cautions(models)]
    parts += [html.table(head, map(_row, models)), "<p>Bytes and time are per check-in of a client.</p>"]
    return "\n".join([*parts, _figures(comparison_pictures(models))])


def _row(model: Model) -> tuple[Any, ...]:
    known = (model.name, _accuracy(model), at_most(model.epsilon))
    if not isinstance(model, Run):
        return (*known, "", "", "merged", "", "")
    return (
        *known,
        at_most(model.unamplified_epsilon),
        f"{model.summary.noise_multiplier:.3g}",
        model.summary.rounds_completed,
        amount_of_bytes(model.bytes_per_check_in),
        amount_of_time(model.seconds_per_check_in),
    )


def _title(model: Model) -> str:
    return model.scenario.name if isinstance(model, Run) else model.name


def _how_many(models: Sequence[Model]) -> str:
    return f"{len(models)} {'runs' if all(isinstance(model, Run) for model in models) else 'models'} compared"


def _run(run: Run, alone: bool) -> str:
    level = "h1" if alone else "h2"
    parts = [f"<{level}>{escape(run.scenario.name if alone else run.name)}</{level}>"]
    parts.append(f"<p>{escape(run.scenario.description)}</p>" if run.scenario.description else "")
    parts.append(f'<p class="verdict">{_verdict(run)}</p>')
    if alone:
        parts.append(_figures(run_pictures(run)))
    parts += [html.heading("Guarantee", alone), _guarantee(run)]
    parts += [html.heading("What was done", alone), _work(run)]
    parts += [html.heading("Ledger", alone), _ledger(run)]
    scenario = escape(RunFolder(run.folder).scenario.read_text(encoding="utf-8"))
    parts.append(f"<details><summary>The scenario, every default written out</summary><pre>{scenario}</pre></details>")
    return "<section>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def _verdict(run: Run) -> str:
    accuracy = f"{_accuracy(run)} accuracy" if run.evaluated else "accuracy was not measured"
    if run.epsilon is None:
        return f"<b>{accuracy}</b>, without privacy: no noise was added."
    saved = ""
    if run.is_amplified:
        saved = f" (without amplification {at_most(run.unamplified_epsilon)})"
    return f"<b>{accuracy}</b> at a privacy cost of <b>ε ≤ {at_most(run.epsilon)}</b>{saved}."


def _guarantee(run: Run) -> str:
    ledger = run.ledger
    if run.epsilon is None:
        return "<p>None. Whoever sees the model may learn anything about anybody's data.</p>"
    charge = "hidden randomness is charged for" if ledger.amplification_charged else "as if nothing were hidden"
    facts = html.facts(
        {
            "what": protection(run),
            "adjacency": ledger.adjacency,
            "ε spent": f"{at_most(run.epsilon)} at most, "
            f"{at_least(run.summary.epsilon.lower)} at least; upper end from: {ledger.epsilon_bound}",
            "ε without amplification": at_most(run.unamplified_epsilon),
            "budget": "none" if ledger.budget_epsilon is None else f"ε ≤ {ledger.budget_epsilon:g}",
            "mechanism": f"{ledger.mechanism_in_words}; {charge}",
        }
    )
    caution = f'<p class="caution">Noise seed: {escape(ledger.noise_seed)}.</p>'
    return f"{facts}\n{caution}\n<p>The guarantee assumes:</p>\n{html.bullets(ledger.assumptions)}"


def _work(run: Run) -> str:
    plan, cost = run.plan, run.summary.cost
    parts = "; ".join(
        f"{part.name}: clipping norm {part.clip:g}, noise multiplier {part.noise_multiplier:.5g}"
        for part in run.ledger.parts
    )
    rounds = f"{len(run.rounds)} of {run.scenario.rounds}"
    return html.facts(
        {
            "rounds": f"{rounds} ({ENDINGS[run.summary.stopped_because]})",
            "cohort": f"{plan.expected_cohort:,.4g} of {plan.units:,} expected a round",
            "protected by": parts,
            "model": f"{run.scenario.model.name}, {run.summary.parameters:,} parameters; a client trains "
            f"{cost.parameters_share:.0%} of them",
            "a check-in": f"{amount_of_bytes(run.bytes_per_check_in)} received and sent; "
            f"{amount_of_time(run.seconds_per_check_in)} of the run's time",
            "time": f"{run.summary.wall_seconds:,.1f} s",
        }
    )


def _ledger(run: Run) -> str:
    releases = run.ledger.releases
    shown = sorted({max(1, round(share * len(releases) / ROUNDS_SHOWN)) for share in range(1, ROUNDS_SHOWN + 1)})
    by_round = {record.round: record for record in run.evaluated}
    rows = []
    for release in (releases[index - 1] for index in shown):
        record = by_round.get(release.round)
        accuracy = "" if record is None else f"{record.accuracy:.1%}"
        rows.append((release.round, accuracy, at_most(release.epsilon_upper), release.digest[:12]))
    whole = hashlib.sha256(RunFolder(run.folder).ledger.read_bytes()).hexdigest()
    table = html.table(("round", "accuracy", "ε spent, at most", "SHA-256 of the model"), rows)
    return (
        f"{table}\n<p>{len(releases)} rounds were released, each written down first. "
        f"SHA-256 of ledger.json: <code>{whole}</code></p>"
    )


def _accuracy(model: Model) -> str:
    return "" if model.accuracy is None else f"{model.accuracy:.1%}"


def _figures(pictures: dict[str, Figure]) -> str:
    return html.figures((style.inline(picture), CAPTIONS[name]) for name, picture in pictures.items())
