"""The examples of the accounting pages, run in order."""

import pytest

from tests.documentation import run_session


@pytest.mark.parametrize("page", ["accountant", "risk"])
def test_examples_print_what_the_page_says(page):
    assert run_session(f"docs/{page}.md") > 10
