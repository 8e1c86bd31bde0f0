"""The examples of docstrings: all are run, and each public name of the three public modules has one."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedamp
import fedamp.accounting
import fedamp.testing
from tests.documentation import ROOT

PUBLIC = (fedamp, fedamp.accounting, fedamp.testing)


def modules() -> list[str]:
    """The names of all modules of fedamp with an example in some docstring."""
    found = []
    for file in sorted((ROOT / "fedamp").rglob("*.py")):
        if ">>>" in file.read_text("utf-8"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@pytest.mark.parametrize("name", modules())
def test_examples_of_docstrings_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples that write use the folder in which they run."""
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted, "an example that doctest does not find is not run"
    assert not found.failed


def examples(thing: Any, name: str) -> list[doctest.Example]:
    """The examples in the docstring of a function or a class, of its methods too."""
    return [example for test in doctest.DocTestFinder().find(thing, name) for example in test.examples]


def has_docstring(thing: Any) -> bool:
    """Whether it is a function, also behind a decorator, or a class: other values have no docstring of their own."""
    return inspect.isclass(thing) or inspect.isroutine(inspect.unwrap(thing))


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_has_an_example(module: Any) -> None:
    """A value that is neither function nor class, such as a constant or a type of a field, occurs in some example."""
    public = {name: getattr(module, name) for name in module.__all__}
    of_own = {name: examples(thing, name) for name, thing in public.items() if has_docstring(thing)}
    assert [name for name, found in of_own.items() if not found] == []
    sources = "".join(example.source for found in of_own.values() for example in found)
    assert [name for name in public if name not in of_own and not re.search(rf"\b{name}\b", sources)] == []


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_says_what_it_is_in_one_line_first(module: Any) -> None:
    """The summary line stands alone, so that ``help`` and indexes show a whole sentence."""
    public = {name: getattr(module, name) for name in module.__all__}
    summaries = {name: (inspect.getdoc(thing) or "").split("\n\n")[0] for name, thing in public.items()}
    documented = {name: text for name, text in summaries.items() if has_docstring(public[name])}
    assert [name for name, text in documented.items() if "\n" in text or not text.endswith((".", ":"))] == []


WORDS = ("Of ", "What ", "Whoever ", "As ")


def docstrings() -> list[tuple[str, str]]:
    """The first words of all docstrings, with the place of each."""
    found = []
    for file in sorted((ROOT / "fedamp").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                found.append((f"{file.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text))
    return found


def test_no_docstring_begins_without_a_subject_or_a_verb() -> None:
    """A docstring says what something is or does; it does not begin with a preposition or a relative word."""
    assert [place for place, text in docstrings() if text.startswith(WORDS)] == []


REFERENCE = re.compile(r":(?:mod|class|func|meth|attr|data):`([\w.]+)`")


def references(node: ast.AST, scopes: list[str]) -> Iterator[list[str]]:
    """The names that references in docstrings may stand for: as they are, or within a module or a class around."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        yield from ([name, *(f"{scope}.{name}" for scope in scopes)] for name in REFERENCE.findall(node.value.value))
    for child in ast.iter_child_nodes(node):
        yield from references(
            child, [*scopes, f"{scopes[-1]}.{child.name}"] if isinstance(child, ast.ClassDef) else scopes
        )


@cache
def is_there(name: str) -> bool:
    """Whether a name is that of a module, of something in it, or of a field that only its annotation names."""
    above, _, last = name.rpartition(".")
    with suppress(ImportError, AttributeError, ValueError):
        pkgutil.resolve_name(name)
        return True
    with suppress(ImportError, AttributeError, ValueError):
        classes = getattr(pkgutil.resolve_name(above), "__mro__", ())
        return any(last in vars(each).get("__annotations__", {}) for each in classes)
    return False


def test_every_reference_in_a_docstring_leads_somewhere() -> None:
    """A name that was moved or renamed is found here."""
    lost = []
    for file in sorted((ROOT / "fedamp").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found = references(ast.parse(file.read_text("utf-8")), [module])
        lost += [f"{file.relative_to(ROOT)}: {names[0]}" for names in found if not any(map(is_there, names))]
    assert lost == []
