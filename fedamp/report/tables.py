"""Make a table for each object that a command prints with ``--json``, at most 80 columns wide.

The objects come from :mod:`fedamp.federation.cost`, :mod:`fedamp.runs` and :mod:`fedamp.report.comparison`; a table
adds no fact. An epsilon is shown by its upper end, rounded up; a lower end is rounded down.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from fedamp.base.numbers import amount_of_bytes, amount_of_time, at_least, at_most
from fedamp.extension import keys
from fedamp.report import words
from fedamp.report.words import metric, value_of
from fedamp.server.traffic import in_words

if TYPE_CHECKING:
    from fedamp.data import LabelCounts
    from fedamp.runs.records import Summary

Answer = Mapping[str, Any]
CellText = str | Callable[[Any], str]
"""A key of a row, or a function of a row."""

ROUNDS_SHOWN = 10
COLOURS = {"pass": "green", "caution": "yellow", "fail": "red"}

LABELS = {
    "epsilon_bound": "upper end from",
    "poisson_epsilon": "by Poisson sampling",
    "unamplified_epsilon": "unamplified",
}


BOLD = r"\textbf{{{}}}"
PAGE = "<pre style='line-height: normal; font-family: monospace'>{code}</pre>"


def printed(shown: RenderableType) -> Console:
    """Make a console of 80 columns that records and shows nothing itself, not even in a notebook, and print to it."""
    console = Console(file=io.StringIO(), width=80, record=True, force_jupyter=False)
    console.print(shown)
    return console


def as_html(shown: RenderableType) -> str:
    """Return one ``pre`` element that needs no style sheet."""
    return printed(shown).export_html(inline_styles=True, code_format=PAGE)


def text(value: Any, key: str = "") -> str:
    """Write a value of an answer: both ends of an epsilon, a bound, a number, or words.

    Args:
        value: of the answer.
        key: of the value; one that ends with ``_upper`` is rounded up.

    >>> text({"lower": 1.23456, "upper": 1.23456})
    '1.2346 (at least 1.2345)'
    """
    if isinstance(value, Mapping):
        return f"{at_most(value['upper'], 4)} (at least {at_least(value['lower'], 4)})"
    if key.endswith("_upper"):
        return at_most(value, 4)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def facts(title: str | None, rows: Answer) -> Table:
    """Make a table with a line for each fact that is not None.

    Args:
        title: above the table; None: there is none.
        rows: facts by their names.
    """
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, text(value))
    return table


def named(answer: Answer, *keys: str) -> dict[str, Any]:
    """Return some values of an answer by the words for their keys.

    A known seed, or an unchecked scheme, is a warning that is added; a secret seed adds nothing.

    Args:
        answer: of a command.
        keys: of the values.
    """
    found = {LABELS.get(key, key.replace("_", " ")): answer[key] for key in keys}
    known = answer.get("known_seed", answer.get("has_known_seed", False))
    said = {"known seed": words.known_seed(answer.get("rehearsal", ""))} if known else {}
    return found | said | ({"schemes": answer["unchecked"]} if answer.get("unchecked") else {})


def listing(rows: Iterable[Answer], columns: Mapping[str, CellText], title: str | None = None) -> Table:
    """Make a table with a line for each row.

    Args:
        rows: mappings.
        columns: by heading, the key of the cell or a function of the row.
        title: above the table.
    """
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(text(row[cell], cell) if isinstance(cell, str) else cell(row) for cell in columns.values()))
    return table


LINE_WIDTH = 345  # points of LaTeX's class article


class RowCells(NamedTuple):
    """Rows of texts, with columns of words, which may be folded, and columns of numbers.

    Attributes:
        left: headings of the columns of words.
        right: headings of the columns of numbers.
        rows: cells, in the order of ``left`` and ``right``.
        bold: cells in bold, each by its row and its column.
    """

    left: Sequence[str]
    right: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()

    @property
    def headings(self) -> list[str]:
        """Headings, each on one line."""
        return [heading.replace("\n", " ") for heading in (*self.left, *self.right)]

    def table(self) -> Table:
        """Make a table without frames."""
        named_ = [Column(heading, overflow="fold") for heading in self.left]
        counted = [Column(heading, justify="right", no_wrap=True) for heading in self.right]
        table = Table(*named_, *counted, box=box.SIMPLE, padding=(0, 1, 0, 0))
        for row in self._cells("[bold]{}[/]", escape):
            table.add_row(*row)
        return table

    def _cells(self, bold: str, escaped: Callable[[str], str]) -> list[list[str]]:
        """Return the rows with all cells escaped, and some of them in bold."""
        return [
            [bold.format(escaped(text)) if (row, column) in self.bold else escaped(text) for column, text in cells]
            for row, cells in enumerate(map(enumerate, self.rows))
        ]

    def markdown(self, notes: Sequence[str] = ()) -> str:
        """Return a table of Markdown.

        Args:
            notes: paragraphs below the table.
        """
        rows = self._cells("**{}**", words.markdown)
        lines = [list(map(words.markdown, self.headings)), ["---"] * len(self.left) + ["---:"] * len(self.right), *rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return "\n\n".join([table, *map(words.markdown, notes)]) + "\n"

    def latex(self, notes: Sequence[str] = (), caption: str = "", label: str = "") -> str:
        """Return a ``tabular`` for the package booktabs; with a caption a ``table`` that contains it.

        Args:
            notes: paragraphs below the table.
            caption: above the table; empty: there is none.
            label: by which a text refers to the table.
        """
        lines = [
            " & ".join(row) + r" \\" for row in ([*map(words.latex, self.headings)], *self._cells(BOLD, words.latex))
        ]
        columns = "l" * len(self.left) + "r" * len(self.right)
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        table = f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"
        below = "".join(f"\n\\par\\smallskip{{\\footnotesize {words.latex(note)}\\par}}\n" for note in notes)
        if not caption:
            return table + below
        above = f"\\centering\n\\caption{{{words.latex(caption)}}}\n\\label{{{label}}}\n\\par\\smallskip\n"
        widths = [max(map(len, cells)) for cells in zip(self.headings, *self.rows, strict=True)]
        if 5 * sum(widths) + 12 * len(widths) > LINE_WIDTH:  # a letter has about 5 points, the space of a column 12
            above += "\\footnotesize\\setlength{\\tabcolsep}{3pt}\n"
        return f"\\begin{{table}}\n{above}{table}{below}\\end{{table}}\n"


def total_table(answer: Answer) -> RenderableType:
    """Show the cost of several runs for a person who is in all of them.

    Args:
        answer: of :func:`fedamp.runs.total.total`.
    """
    columns: dict[str, CellText] = {"run": "run", "epsilon": "epsilon"}
    rows = {
        "fixed in advance": answer["fixed"],
        "chosen one after another": f"a budget of {at_most(answer['adaptive_epsilon'], 3)}",
        "delta": answer["delta"],
    }
    return Group(listing(answer["runs"], columns), facts("for a person in all of them", rows))


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """Choose at most ``count`` of the rows, evenly spread, with the last one.

    >>> spread([1, 2, 3, 4, 5, 6], 3)
    [2, 4, 6]
    """
    chosen = {max(1, round(share * len(rows) / count)) for share in range(1, count + 1)} if rows else set()
    return [rows[number - 1] for number in sorted(chosen)]


def run_table(summary: "Summary", clipped: float | None = None) -> Table:
    """Show quality, cost, work and time of a run.

    Args:
        summary: of the run.
        clipped: share of the updates that were clipped, for the server's owner; nearly none or all give a hint.
    """
    rows: dict[str, str] = {}
    if summary.final.score is not None:
        name, value = summary.final.score
        others = {other: value_of(other, found) for other, found in summary.final.metrics.items() if other != name}
        beside = [f"loss {summary.final.loss:.3f}", *(f"{metric(other)} {found}" for other, found in others.items())]
        rows[metric(name)] = f"{value_of(name, value, 2)} on the public test set ({', '.join(beside)})"
    elif summary.side_release is None:
        rows["quality"] = words.NOT_MEASURED
    rows |= words.released(summary.side_release)
    if math.isinf(summary.epsilon.upper):
        rows["privacy"] = "none: no noise was added"
    else:
        released = summary.released_rounds_epsilon.upper
        rows["epsilon"] = f"{at_most(summary.epsilon.upper, 3)} at delta = {summary.delta:g}"
        if released < summary.epsilon.upper:
            rows["epsilon"] += ", the cost of all rounds"
            rows["of these rounds"] = f"{at_most(released, 3)}, if the stop was independent of the data"
        if summary.has_known_seed:
            rows["known seed"] = words.known_seed(summary.rehearsal)
        if summary.unchecked:
            rows["schemes"] = summary.unchecked
        rows["unamplified"] = f"{at_most(summary.unamplified_epsilon.upper, 3)} for the whole run"
        rows["towards the server"] = words.for_server(
            None if summary.epsilon_server is None else summary.epsilon_server.upper
        )
        if summary.epsilon_nodes is not None:
            both = summary.epsilon_nodes.upper, summary.unamplified_epsilon.upper
            rows["towards the nodes"] = words.for_nodes(*both)
        rows["noise multiplier"] = f"{summary.noise_multiplier:.4g}"
    rows["rounds"] = str(summary.rounds_completed)
    trained, seconds, start = summary.clients_trained, summary.wall_seconds, summary.startup_seconds
    scheduled = summary.clients_scheduled
    missed = f" [yellow]of {scheduled:,} scheduled[/]" if trained < scheduled else ""
    rows["clients trained"] = f"{trained:,}{missed} ({trained / max(seconds, 1e-9):,.0f} a second)"
    if summary.clients_failed:
        rows["failed"] = f"[yellow]{summary.clients_failed:,}[/], not finite or not readable: they count as zero"
    if clipped is not None and not 0.01 <= clipped <= 0.99:
        why = "privacy.clip decides the step alone" if clipped > 0.5 else "a smaller privacy.clip needs less noise"
        rows["clipped"] = f"{clipped:.0%} of the updates: {why}; auto chooses it"
    if summary.cost.parameters_share < 1:
        sent, work = summary.cost.parameters_share, summary.cost.flops_share
        rows["sent to a client"] = f"{sent:.0%} of the model; {work:.0%} of the work"
    rows["time"] = f"{seconds:.1f} s" + (f", and {start:.1f} s to start" if start >= 0.1 else "")
    return facts(f"{summary.name}: {words.ENDINGS[summary.stopped_because]}", rows)


def privacy_table(answer: Answer) -> RenderableType:
    """Show the cost of a scenario with and without amplification, and over the rounds.

    Args:
        answer: of :func:`fedamp.federation.cost.privacy_cost`, with the key ``traffic``.
    """
    unit, budget = answer["unit"], answer["budget"]
    pays = f"pays for {answer['affordable_rounds']} of {answer['rounds']} rounds"
    rows = {
        "protected": words.protected(unit, answer["group_size"]),
        "expected cohort": f"{answer['expected_cohort']:,.4g} of {answer['units']:,} {unit}s a round",
        **named(answer, "adjacency", "delta", "noise_multiplier", "mechanism", "epsilon", "poisson_epsilon"),
        **named(answer, "unamplified_epsilon", "epsilon_bound"),
        **{f"epsilon, {name} model": epsilon for name, epsilon in answer["by_capacity"].items()},
        "towards the server": words.for_server(answer["epsilon_server"] and answer["epsilon_server"]["upper"]),
        "interpretation": answer["risk"]["in_words"],
        "budget": "none" if budget is None else f"epsilon <= {budget:g}, {pays}",
    }
    for key in keys("side_sums"):
        if side := answer[key]:
            told = {name.replace("_", " "): value for name, value in side.items() if name.endswith("_upper")}
            known = [f"{name.removesuffix(' upper')} at most {at_most(value, 4)}" for name, value in told.items()]
            rows[key] = "; ".join([*known, f"alone it costs epsilon {at_most(side['epsilon']['upper'], 3)}"])
    if answer["epsilon_nodes"]:
        upper = answer["epsilon_nodes"]["upper"]
        rows["towards the nodes"] = words.for_nodes(upper, answer["unamplified_epsilon"]["upper"], answer["protection"])
    if traffic := answer["traffic"]:
        dummies = "with" if traffic["dummies"] else "without"
        rows["traffic"] = f"at most {amount_of_bytes(traffic['bytes_per_node']['upper'])} a node, {dummies} dummies"
        rows["a node's round"] = in_words(traffic["each_round"])
    curve = {"round": "round", "epsilon": "epsilon_upper", "unamplified": "unamplified_upper"}
    groups: RenderableType = "To see what groups together would cost, add --groups (groups=True): it takes seconds"
    if answer["groups"] is not None:
        sizes = {f"{unit}s together": "size", "epsilon": "epsilon_upper"}
        groups = listing(answer["groups"], sizes, "cost of groups, at most")
    return Group(
        facts(f"{answer['scenario']}: privacy cost", rows),
        listing(spread(answer["per_round"], ROUNDS_SHOWN), curve, "spent so far, at most"),
        groups,
        f"Assumes a trusted server and hidden assignments: {words.GUARANTEES}",
    )


def calibration_table(answer: Answer) -> Table:
    """Show the calibrated noise, and the epsilon that it gives.

    Args:
        answer: of :func:`fedamp.federation.cost.calibration`.
    """
    rows = named(answer, "noise_multiplier", "budget", "delta", "epsilon", "mechanism")
    return facts(f"{answer['scenario']}: least noise for the budget", rows)


def comparison_cells(answer: Answer) -> RowCells:
    """Make a row for each run and merged model; columns of work are empty for a merged one.

    Args:
        answer: of :meth:`fedamp.report.comparison.Comparison.to_json`.
    """
    leads = words.common(run["score"] for run in answer["runs"])  # models of several tasks name theirs in each row
    rows = []
    for run in answer["runs"]:
        quality = value_of(*run["score"]) if leads and run["score"] else words.score(run["score"])
        work = ["", "merged", "", ""]
        if run["merged_by"] is None:
            costs = amount_of_bytes(run["bytes_per_check_in"]), amount_of_time(run["seconds_per_check_in"])
            work = [at_most(run["unamplified_epsilon_upper"]), str(run["rounds_completed"]), *costs]
        rows.append([run["name"], quality, at_most(run["epsilon"]["upper"]), *work])
    headings = (leads or "quality", "epsilon", "unamplified", "rounds", "bytes per\ncheck-in", "time per\ncheck-in")
    return RowCells(["run"], headings, rows)


def checks_table(title: str, answer: Answer) -> Table:
    """Show every check with its verdict.

    Args:
        title: above the table.
        answer: of :func:`fedamp.runs.verification.checks_json`.
    """
    table = Table("", "", Column(overflow="fold"), title=title, show_header=False)  # all of a long digest
    for check in answer["checks"]:
        table.add_row(Text(check["verdict"], COLOURS[check["verdict"]]), check["name"], check["found"])
    return table


def partition_summary(counts: "LabelCounts") -> str:
    """Say in one line how many records clients have. The numbers are computed from private records."""
    import numpy as np

    sizes = counts.sizes if counts.sizes.size else np.zeros(1, dtype=np.int64)
    return (
        f"{sizes.sum():,} training records of {len(counts.sizes):,} clients "
        f"({sizes.min()} to {sizes.max()} each, median {np.median(sizes):g}); "
        f"{counts.test_records:,} public test records"
    )
