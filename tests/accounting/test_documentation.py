"""The examples of docs/accountant.md, run in order."""

from tests.documentation import run_session


def test_examples_print_what_the_page_says():
    assert run_session("docs/accountant.md") > 15
