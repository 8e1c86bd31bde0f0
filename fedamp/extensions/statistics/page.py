"""Show answers: rows of a table, a picture, and one HTML page with both, which holds public numbers alone."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedamp.base.files import write_atomically
from fedamp.base.numbers import at_most
from fedamp.base.text import printable
from fedamp.extensions.statistics.answers import QuestionAnswer, ReleasedAnswers
from fedamp.report import style

_MOST = 40  # numbers of a picture
_STYLE = "body{font-family:sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em 1em .2em 0;text-align:left}"


def rows_of(answers: ReleasedAnswers) -> list[dict[str, str]]:
    """List the numbers as rows of a table: question, number, and value with its interval."""
    return [
        {"question": answer.name, "number": number.name, "value (interval)": number.in_words}
        for answer in answers.answers
        for number in answer.numbers
    ]


def cost_in_words(answers: ReleasedAnswers) -> str:
    """Say what the answers cost together."""
    if answers.epsilon_upper is None:
        return "no noise: these answers protect nobody"
    if not answers.epsilon_upper:
        return "at no further cost"
    return f"epsilon <= {at_most(answers.epsilon_upper, 3)} at delta = {answers.delta:g} for all answers together"


@style.usual()
def answers_picture(answers: ReleasedAnswers) -> Figure | None:
    """Draw tables as bars and survival as curves, each with its intervals; None: there is neither."""
    drawn = [each for each in answers.answers if each.question["ask"] in ("table", "means", "survival")]
    drawn = [each for each in drawn if any(number.value is not None for number in each.numbers)][:12]
    if not drawn:
        return None
    covers = f"bars: {100 * answers.level:g} % for noise, each alone"
    canvas, all_axes = style.figure(printable(answers.scenario), covers, (2.6,) * len(drawn))
    for axes, answer in zip(all_axes, drawn, strict=True):
        _draw_curves(axes, answer) if answer.question["ask"] == "survival" else _draw_bars(axes, answer)
        axes.set_ylabel(printable(answer.name))
    return canvas


def _draw_bars(axes: Axes, answer: QuestionAnswer) -> None:
    """Draw the numbers of a table, or the means of groups, with their intervals; suppressed ones stay empty."""
    numbers = [each for each in answer.numbers if not each.name.endswith(": count")][:_MOST]
    values = np.array([np.nan if each.value is None else each.value for each in numbers])
    ends = np.array([[each.lower, each.upper] if each.value is not None else [np.nan] * 2 for each in numbers], float).T
    axes.errorbar(
        range(len(numbers)), values, np.abs(ends - values), **style.look(0).options | {"linestyle": ""}, capsize=3
    )
    axes.set_xticks(range(len(numbers)), [style.shortened(printable(each.name), 18) for each in numbers], rotation=60)


def _draw_curves(axes: Axes, answer: QuestionAnswer) -> None:
    """Draw survival curves of all groups with the intervals for noise."""
    for index, (group, points) in enumerate(sorted(_curves_of(answer).items())):
        times, values, lower, upper = np.array(points).T
        look = style.look(index).options
        axes.step(times, values, where="post", label=printable(group), color=look["color"])
        axes.fill_between(times, lower, upper, step="post", alpha=0.2, color=look["color"])
    axes.set_ylim(0, 1)
    axes.set_xlabel(printable(answer.question["time"]))
    axes.legend(frameon=False)


def _curves_of(answer: QuestionAnswer) -> dict[str, list[tuple[float, ...]]]:
    """Return the points of each group's curve: time, share, both ends."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for number in answer.numbers:
        group, word, time = number.name.rpartition("survival at ")
        if word and number.value is not None:
            group = group.removesuffix(": ") or "all"
            point = (float(time), number.value, float(number.lower or 0), float(number.upper or 0))
            found.setdefault(group, [(0.0, 1.0, 1.0, 1.0)]).append(point)
    return found


def write_page(answers: ReleasedAnswers, file: Path) -> None:
    """Write answers as one HTML page with their picture."""
    write_atomically(file, "\n".join(_page_lines(answers)).encode(), durable=False)


def _page_lines(answers: ReleasedAnswers) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"<!doctype html><meta charset=utf-8><title>{escape(answers.scenario)}</title><style>{_STYLE}</style>"
    yield f"<h1>{escape(answers.scenario)}</h1><p>{answers.units:,} people; {escape(cost_in_words(answers))}."
    yield f"<p>{escape(answers.covers)} The probability is {answers.level:g}."
    yield f"Numbers that rest on a noisy count below {answers.least:g} are not shown."
    for answer in answers.answers:
        yield f"<h2>{escape(answer.name)}</h2><p>{escape(' '.join(answer.caveats))}<table>"
        for number in answer.numbers:
            yield f"<tr><td>{escape(number.name)}<td>{escape(number.in_words)}"
        yield "</table>"
    if picture := answers_picture(answers):
        yield f'<img alt="answers with their intervals" src="{style.inline(picture)}">'
