"""Every epsilon, delta and noise multiplier that the pages charge, asked again of today's accountant."""

import pytest

from benchmarks.papers.__main__ import PAGES, tables_of
from benchmarks.papers.charges import Question
from benchmarks.papers.partitioning import crossing

# Tables with a question that takes seconds: a million rounds, ten thousand answers, many sampled rounds.
SLOW = {
    *(("allocation", f"figure_{number}") for number in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)),
    ("allocation", "scenario"),
    ("groups", "figure_11"),
    ("groups", "figure_12"),
    *(("k_of_t", name) for name in ("brackets", "compositions", "declining", "looseness", "noise_for_8")),
    *(("merging", name) for name in ("figure_2", "trained_directly")),
    ("modelmix", "figure_3"),
    ("modelmix", "of_cifar10"),
    ("modelmix", "table_1"),
    ("modelmix", "table_2"),
    ("partitioning", "figure_3"),
    ("published", "schemes"),
}


def charged_cells(page, name):
    rows = tables_of(page)[name]["rows"]
    return [
        (f"{next(iter(row.values()))}, {column}", cell)
        for row in rows
        for column, cell in row.items()
        if isinstance(cell, dict)
    ]


CASES = [
    pytest.param(page, name, marks=pytest.mark.slow if (page, name) in SLOW else ())
    for page in PAGES
    for name in tables_of(page)
    if charged_cells(page, name)
]


@pytest.mark.filterwarnings("ignore:.* took .* s, answered by")  # on a busy machine
@pytest.mark.parametrize(("page", "name"), CASES)
def test_the_page_shows_what_the_accountant_answers_today(page, name, subtests):
    for words, cell in charged_cells(page, name):
        with subtests.test(words):
            question = Question.from_json(cell["asked"])
            # Sampled brackets are half a per cent wide, sampled deltas two; all else has four digits.
            sampled = "Allocation" in str(cell["asked"]) and question.points is None
            tolerance = max(question.precision or 0, 0.006) if sampled else 1e-3
            answer = question.answer()
            if question.delta is not None and question.epsilon is not None:  # a noise multiplier and its budget
                assert answer <= question.epsilon * (1 + 1e-9)
                assert answer == pytest.approx(question.epsilon, rel=2 * tolerance)
            else:
                assert answer == pytest.approx(cell["value"], rel=tolerance)


def test_balancing_gains_eight_to_nine_rounds_by_the_exact_laws():
    """Partitioning, Figure 3: the paper says ten."""
    rows = tables_of("partitioning")["figure_3"]["rows"]
    rounds, gained = (55, 60, 65, 70), []
    for law in ("balanced, fedamp", "Poisson, loss distribution"):
        found = crossing(rounds, [row[law]["value"] for row in rows[:4]])
        assert found == pytest.approx(rows[4][law], abs=0.05)
        gained.append(found)
    assert 8 < gained[0] - gained[1] < 9


def test_sampling_is_at_most_an_eighth_below_the_split():
    """k-of-t.md: 0 to 12 per cent."""
    tables = tables_of("k_of_t")
    more = [float(row["more, %"]) for name in ("looseness", "brackets") for row in tables[name]["rows"]]
    assert 0 <= min(more) < 0.5
    assert 11 < max(more) < 12.5
