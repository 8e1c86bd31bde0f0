"""How a benchmark keeps what it measures: results beside its module, with commit and command, and tables in pages."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Row = dict[str, str | float | None]
"""A line of a table: cells by the column's heading. Every row of a table names its columns in one order."""


# --- results ----------------------------------------------------------------------------------------------------------


def made() -> dict[str, Any]:
    """The commit, the command and the machine of a measurement that begins now: the first keys of its results."""
    command = getattr(sys.modules["__main__"].__spec__, "name", "").removesuffix(".__main__")
    return {"commit": commit(), "command": " ".join(["python -m", command, *sys.argv[1:]]), "machine": machine()}


def commit() -> str:
    """The commit that is checked out; it ends with ``-dirty`` where Python files differ from it."""

    def git(*words: str) -> str:
        with suppress(FileNotFoundError):  # a copy of the files, on a machine without git
            return subprocess.run(
                ["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
            ).stdout.strip()
        return ""

    changed = git("diff", "--name-only", "HEAD", "--", "*.py")
    return git("rev-parse", "--short=8", "HEAD") + ("-dirty" if changed else "")


def machine() -> dict[str, Any]:
    """What figures depend on. Load above zero is other people's, and makes all figures worse."""
    cpus = Path("/proc/cpuinfo")
    clock = re.search(r"cpu MHz\s*: ([\d.]+)", cpus.read_text()) if cpus.exists() else None
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "gigahertz": round(float(clock[1]) / 1000, 1) if clock else None,
        "load_at_start": os.getloadavg(),
    }
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        found["gpu"] = sys.modules["torch"].cuda.get_device_name()
    return found


def store(file: Path, figures: Mapping[str, Any]) -> None:
    """Write results: complete at any time, so that a benchmark that is stopped leaves those so far."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(figures, indent=1) + "\n")
    draft.replace(file)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a results file, one line of JSON each, without their commits; none if there is no file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [{key: value for key, value in json.loads(line).items() if key != "commit"} for line in lines]


def add_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append a row, with the commit at which it was measured, and print it."""
    with file.open("a") as lines:
        lines.write(json.dumps({**row, "commit": commit()}) + "\n")
    print(json.dumps(row)[:400], flush=True)


class Kept:
    """Results of trainings, a row each: settings and result. A training that the file has is not run again."""

    def __init__(self, file: Path) -> None:
        self._file, self._rows = file, rows_of(file)

    def find(self, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The stored result of these settings, if there is one."""
        settings = json.loads(json.dumps(settings))  # tuples become lists
        return next((dict(row["result"]) for row in self._rows if row["settings"] == settings), None)

    def get(self, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of ``make`` for these settings."""
        known = self.find(settings)
        if known is not None:
            return known
        row = json.loads(json.dumps({"settings": settings, "result": make()}))
        self._rows.append(row)
        add_row(self._file, row)
        return dict(row["result"])


class Finished:
    """Names of finished parts of a long command, forgotten when the code changes.

    Args:
        name: of the file in ``folder``.
        code: patterns of the files below the project's root that decide the results.
        folder: where the file lies; default: ``build``.
    """

    def __init__(self, name: str, code: Iterable[str], folder: Path = ROOT / "build") -> None:
        self._file = folder / f"{name}.json"
        digest = hashlib.sha256()
        for file in sorted(file for each in code for file in ROOT.glob(each)):
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
        self._code = digest.hexdigest()
        kept = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._names: list[str] = kept["names"] if kept.get("code") == self._code else []

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Keep that it is finished."""
        self._names.append(name)
        store(self._file, {"code": self._code, "names": self._names})


# --- pages ------------------------------------------------------------------------------------------------------------


def put_in(page: Path, mark: str, found: str) -> None:
    """Print ``found``, and put it at its place of a page: ``<!-- mark -->``, a line or a table, ``<!-- end -->``.

    Raises:
        ValueError: if the page does not have the place once.
    """
    print(f"\n{mark}\n\n{found}")
    place = re.compile(f"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    text, places = place.subn(lambda marks: f"{marks[1]}{found.rstrip()}\n{marks[2]}", page.read_text())
    if places != 1:
        raise ValueError(f"{page} has {places} places <!-- {mark} -->; expected: one")
    page.write_text(text)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Stored rows as Markdown: four significant digits, and text as it is."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([shown(row[column]) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(cell: Any) -> str:
    """A stored cell as text."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell['value'] if isinstance(cell, dict) else cell:.4g}"
