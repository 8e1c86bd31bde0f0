"""The rooms of the package: every module can be imported, and imports go one way, never in a circle.

All imports count: at the top of a module, inside functions, and for type checkers.
"""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fedamp.extension import Extension, all_offered
from tests.documentation import ROOT

# A room may import the rooms in the lines above its own, and nothing else. `errors` and `rng` belong to `base`.
ORDER = (
    ("base",),
    ("extension",),
    ("accounting",),
    ("noise",),
    ("data", "models"),
    ("federation",),
    ("engines",),
    ("testing",),
    ("client",),
    ("strategies",),
    ("runs",),
    ("server",),
    ("report",),
    ("api",),
    ("cli",),
    ("extensions",),
)
FLOOR = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}
OUTSIDE = {"fedamp", "fedamp.__main__", "fedamp.api", "fedamp.errors", "fedamp.extension", "fedamp.noise", "fedamp.rng"}

FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted((ROOT / "fedamp").rglob("*.py"))
}


def targets(file: Path) -> Iterator[str]:
    """The modules of fedamp that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "fedamp")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedamp":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in FILES else str(node.module) for name in names)


@cache
def imports() -> dict[str, set[str]]:
    return {name: set(targets(file)) for name, file in FILES.items()}


def arrows() -> list[tuple[str, str]]:
    return [(name, other) for name in FILES for other in imports()[name] if name not in ("fedamp", "fedamp.__main__")]


def room(name: str) -> str:
    first = name.split(".")[1]
    return "base" if first in ("errors", "rng") else first


def test_every_module_can_be_imported():
    for name in sorted(FILES.keys() - {"fedamp.__main__"}):
        importlib.import_module(name)


def test_every_module_has_a_room_but_a_few():
    assert {name for name in FILES if FILES[name].parent == ROOT / "fedamp"} == OUTSIDE
    assert {room(name) for name in FILES.keys() - {"fedamp", "fedamp.__main__"}} == FLOOR.keys()


def test_no_room_imports_the_front_of_the_package():
    assert [name for name, other in arrows() if other == "fedamp"] == []


def test_imports_go_down():
    upward = [
        f"{name} -> {other}"
        for name, other in arrows()
        if other != "fedamp" and room(name) != room(other) and FLOOR[room(name)] <= FLOOR[room(other)]
    ]
    assert upward == []


def test_the_accountant_imports_nothing_else_but_files_texts_and_the_version():
    """These modules need the standard library alone: the accountant works without the packages of training."""
    outside = {other for name, other in arrows() if room(name) == "accounting" != room(other)}
    assert outside <= {*(f"fedamp.base.{name}" for name in ("reading", "start", "text", "version")), "fedamp.extension"}
    assert imports()["fedamp.base.reading"] == {"fedamp.base.numbers"}
    assert not any(
        imports()[name]
        for name in ("fedamp.base.numbers", "fedamp.base.start", "fedamp.base.text", "fedamp.base.version")
    )
    assert not imports()["fedamp.extension"]


def test_the_core_imports_no_extension():
    """Extensions import the core, and may import each other downwards: no circle, as for all modules."""
    assert [f"{name} -> {other}" for name, other in arrows() if room(other) == "extensions" != room(name)] == []


def test_to_list_extensions_imports_nothing_of_them():
    for file in (ROOT / "fedamp" / "extensions").glob("*/__init__.py"):
        assert set(targets(file)) <= {"fedamp.extension"}, file


def test_what_extensions_name_is_there():
    for seam in [field.name for field in fields(Extension) if field.name not in ("name", "help_groups")]:
        assert all(each is not None for _, each in all_offered(seam)), seam


def test_no_imports_form_a_circle():
    try:
        TopologicalSorter({name: imports()[name] - {"fedamp"} for name in FILES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
