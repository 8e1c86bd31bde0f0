"""The part of an HTML report that is about a merged model. It holds what its certificate holds, and its accuracy."""

import base64
from html import escape

from fedamp.numbers import at_least, at_most, power
from fedamp.report import html
from fedamp.runs.folder import RunFolder
from fedamp.runs.merged import Merged

PICTURE = "What the weights cost: epsilon over the weights of the models, and the weights that were taken."


def merged_section(model: Merged, alone: bool) -> str:
    """Verdict, guarantee, and what the model was made of."""
    level = "h1" if alone else "h2"
    accuracy = f"{model.accuracy:.1%} accuracy"
    parts = [
        f"<{level}>{escape(model.name)}</{level}>",
        f'<p class="verdict"><b>{accuracy}</b> at a privacy cost of <b>ε ≤ {at_most(model.epsilon)}</b>, '
        f"merged from {len(model.certificate.inputs)} models by {escape(model.method)}.</p>",
        _picture(model) if alone else "",
        html.heading("Guarantee", alone),
        _guarantee(model),
        html.heading("What it is made of", alone),
        _inputs(model),
    ]
    return "<section>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def _guarantee(model: Merged) -> str:
    certificate = model.certificate
    size, unit = certificate.group_size, certificate.unit
    protected = f"one {unit}" if size == 1 else f"any {size} {unit}s together"
    facts = html.facts(
        {
            "what": f"{protected} of {certificate.units:,}, δ = {power(certificate.delta)}",
            "adjacency": certificate.adjacency,
            "ε": f"{at_most(model.epsilon)} at most, {at_least(certificate.epsilon.lower)} at least; "
            f"upper end from: {certificate.epsilon_bound}",
            "budget": f"ε ≤ {certificate.budget_epsilon:g}",
            "mechanism": certificate.mechanism_in_words,
            "SHA-256 of the model": certificate.model_sha256,
        }
    )
    caution = "A seed is known, so the noise or the draw is: for research, not for release."
    known = f'<p class="caution">{caution}</p>\n' if certificate.has_known_seed else ""
    return f"{facts}\n{known}<p>The guarantee assumes:</p>\n{html.bullets(certificate.assumptions)}"


def _inputs(model: Merged) -> str:
    """Their accuracies are not in here: they come from models that are not released."""
    certificate = model.certificate
    drawn = certificate.draw.model if certificate.draw else None
    rows = [
        (
            part.name + (" (drawn)" if part.name == drawn else ""),
            part.scenario,
            f"{weight:.6g}",
            at_most(part.epsilon_upper),
        )
        for part, weight in zip(certificate.inputs, certificate.weights, strict=True)
    ]
    table = html.table(("model", "scenario", "weight", "ε alone"), rows)
    return f"{table}\n<p>Weights: {escape(certificate.weights_chosen_by)}.</p>"


def _picture(model: Merged) -> str:
    file = RunFolder(model.folder).plots / "epsilon-over-weights.png"
    if not file.is_file():  # it is drawn for two and three models
        return ""
    return html.figures([("data:image/png;base64," + base64.b64encode(file.read_bytes()).decode(), PICTURE)])
