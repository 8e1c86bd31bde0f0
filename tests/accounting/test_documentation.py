"""The examples of the accounting pages, run in order, and the table of theorems, which is generated.

``python -m tests.accounting.test_documentation`` writes the table anew.
"""

import ast
import inspect
import re

import pytest

from fedamp.accounting import Mechanism, answers, law, renyi, theorems
from tests.accounting.contract import PROOFS
from tests.documentation import ROOT, run_session

PAGE = ROOT / "docs/accounting.md"
BEGIN, END = "<!-- theorems: generated -->\n", "<!-- end -->\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("page", ["accountant", "risk"])
def test_examples_print_what_the_page_says(page):
    assert run_session(f"docs/{page}.md") > 10


def operations():
    """The operation of ``Law`` behind each case of ``law_by_kind``."""
    function = ast.parse(inspect.getsource(law.law_by_kind))
    cases = next(node for node in ast.walk(function) if isinstance(node, ast.Match)).cases
    for case in cases:
        names = [node.cls.attr for node in ast.walk(case.pattern) if isinstance(node, ast.MatchClass)]
        calls = [
            node.func.attr
            for node in ast.walk(case.body[-1])
            if isinstance(node, ast.Call) and hasattr(node.func, "attr")
        ]
        known = [call for call in calls if hasattr(law.Law, call)]
        yield from ((name, getattr(law.Law, known[0]) if known else None) for name in names)


def charge(kind):
    """The function that says what a kind costs, and the module's name for it."""
    by_law = dict(operations())
    for module, registry in (
        ("theorems", theorems.charged_as.registry),
        ("law", law.law_by_kind.registry),
        ("answers", answers.answer_by_law.registry),
    ):
        if kind in registry:
            return f"{module}.{registry[kind].__name__}", registry[kind]
    if by_law.get(kind.__name__):
        return f"law.Law.{by_law[kind.__name__].__name__}", by_law[kind.__name__]
    if kind in renyi._KINDS:
        return f"renyi.{renyi._KINDS[kind].__name__}", renyi._KINDS[kind]
    return "theorems.normal", theorems.normal


def table():
    rows = ["| event | release | theorem | charged by | attained by | test |", "| --- | --- | --- | --- | --- | --- |"]
    for name, kind in sorted(Mechanism.kinds.items()):
        text = " ".join(inspect.getdoc(kind).split())
        release = re.search(r"Release: (.*?)\.(?= [A-Z`]|$)", text).group(1)
        function, found = charge(kind)
        cited = re.findall(
            r"\(((?:ours|[^()]*\b(?:19|20)\d\d)[^()]*)\)", " ".join((inspect.getdoc(found) or "").split())
        )
        lower = theorems.attained.registry.get(kind)
        attains = f"`{lower.__name__}`" if lower else ""
        tests = ", ".join(f"`{each}`" for each in PROOFS[name])
        rows.append(
            f"| `{name}` | {release.replace('|', '&#124;')} | {'; '.join(cited)} | `{function}` | {attains} | {tests} |"
        )
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
