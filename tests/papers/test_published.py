"""docs/published.md: its tables are those of the kept results, which are whole."""

import json
from pathlib import Path

from benchmarks import published

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_last_run():
    rows = json.loads((ROOT / published.RESULTS).read_text())
    page = (ROOT / published.PAGE).read_text()
    assert published.with_tables(page, rows) == page
    assert page.count("<!-- table: ") == 3


def test_results_keep_their_budgets_and_ours_needs_the_least_noise():
    rows = json.loads((ROOT / published.RESULTS).read_text())
    for key, row in rows.items():
        name, scheme, epsilon = key.split()
        assert row["epsilon"]["upper"] <= float(epsilon)
        assert row["settings"]["name"] == name
        assert len({run["seed"] for run in row["runs"]}) == len(row["runs"])
        if scheme == "check-in":
            others = [rows.get(f"{name} {other} {epsilon}", row) for other in published.SCHEMES]
            assert row["noise_multiplier"] <= min(other["noise_multiplier"] for other in others)
