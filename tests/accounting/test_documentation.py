"""The examples of the accounting pages, run in order, and the table of theorems, which is generated.

``python -m tests.accounting.test_documentation`` writes the table anew.
"""

import ast
import inspect
import re

import pytest

from fedamp.accounting import Hidden, Mechanism
from tests.accounting.contract import PROOFS
from tests.documentation import ROOT, run_session

PAGE = ROOT / "docs/research/accounting.md"
BEGIN, END = "<!-- theorems: generated -->\n", "<!-- end -->\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("page", ["accountant", "research/risk"])
def test_examples_print_what_the_page_says(page):
    assert run_session(f"docs/{page}.md") > 10


def defining(kind, name):
    """The class that says for a kind what a method answers, if it is not the base of all mechanisms."""
    found = next(each for each in kind.__mro__ if name in vars(each))
    return None if found in (Mechanism, Hidden) else found


def cited(method):
    """The theorems, in parentheses, of a method's docstring."""
    text = " ".join((inspect.getdoc(method) or "").split())
    return re.findall(r"\(((?:ours|[^()]*\b(?:19|20)\d\d)[^()]*)\)", text)


def charge(kind):
    """The method that says what a kind costs, with its theorem, if it has one; and its name."""
    names = ("charged_as", "law", "by_law", "representative", "moments")
    found = [(name, defined) for name in names if (defined := defining(kind, name))]
    known = [(f"{defined.__name__}.{name}", vars(defined)[name]) for name, defined in found]
    return next((each for each in known if cited(each[1])), known[0])


def table():
    rows = ["| event | release | theorem | charged by | attained by | test |", "| --- | --- | --- | --- | --- | --- |"]
    for name, kind in sorted(Mechanism.kinds.items()):
        text = " ".join(inspect.getdoc(kind).partition(">>>")[0].split())
        release = re.search(r"Release: (.*?)\.(?= [A-Z`]|$)", text).group(1)
        function, found = charge(kind)
        lower = defining(kind, "attained_mechanism")
        attains = (
            "itself" if getattr(kind, "is_exact", False) else f"`{lower.__name__}.attained_mechanism`" if lower else ""
        )
        tests = ", ".join(f"`{each}`" for each in PROOFS[name])
        charged = f"{'; '.join(cited(found))} | `{function}`"
        rows.append(f"| `{name}` | {release.replace('|', '&#124;')} | {charged} | {attains} | {tests} |")
    return "\n".join(rows) + "\n"


def test_the_table_of_theorems_is_that_of_the_code():
    page = PAGE.read_text("utf-8")
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)] == table()


def test_the_tests_of_theorems_are_there():
    found = {
        node.name
        for folder in (ROOT / "tests/accounting", ROOT / "tests/extensions")
        for file in folder.rglob("test_*.py")
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {name for tests in PROOFS.values() for name in tests} <= found


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + table() + page[page.index(END) :], "utf-8")
