"""Read scenario files with ``--set`` overrides, and validate them.

Every error is one line: the file, the path of the key, what was found, and what is expected
(:mod:`fedamp.federation.messages`). Reading a scenario runs no code that it names. The command line, the Flower app and
``fedamp.load`` read through :func:`load`; run folders are read again through it, too.

>>> load("digits", ["rounds=30", "check_in.k=3"]).rounds
30
"""

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from fedamp.base.given import PREFIX
from fedamp.base.reading import read_own
from fedamp.base.section import MOST_COUNTED, OwnersFile
from fedamp.base.text import printable
from fedamp.base.yaml_files import UNREADABLE, Loader, value_of
from fedamp.data.places import folder_of
from fedamp.errors import ModelError, ScenarioError
from fedamp.federation.choices import marked_keys
from fedamp.federation.losses import check_name
from fedamp.federation.messages import explain_error
from fedamp.federation.scenario import Scenario
from fedamp.models.architectures import architecture_of
from fedamp.models.custom import is_import_path

LARGEST_FILE = 10**7  # bytes
_NOT_DESCRIBED = {"seed", "known_seed", "engine", "federation", "trackers"}
MOST_MEASURED = 1e50  # squares of more would overflow

_CHECKOUT = Path(__file__).resolve().parents[2] / "scenarios"
SHIPPED = _CHECKOUT if _CHECKOUT.is_dir() else Path(sys.prefix) / "share" / "fedamp" / "scenarios"


def load(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> Scenario:
    """Read and validate a scenario.

    Relative paths of data and model start at the folder of the scenario, which may be behind a link. Where there is no
    file, they start at the working directory. A description is dropped where an override changes what it may describe:
    all but the seeds, and where and how the scenario is run.

    Args:
        source: a YAML file, the name of a shipped scenario (``digits``), or the content of such a file.
        overrides: texts of the form ``key.path=value``; values as :func:`fedamp.base.yaml_files.value_of` reads them.
        changes: values by ``key.path``. A mapping changes the keys that it names. With a ``scheme`` or ``name`` it
            replaces the whole section.

    Returns:
        The scenario, with absolute paths.

    Raises:
        ScenarioError: one line with the file, the key path, and the expected values.
    """
    file = None if isinstance(source, Mapping) else find_scenario(source)
    raw, lines = _read_lines(file) if file else (_plain_value(source), {})
    for text in overrides:
        apply_override(raw, text)
    for key, value in (changes or {}).items():
        _change_key(raw, key, _plain_value(value), key)
    said = {text.partition("=")[0].strip(): f"--set {text}" for text in overrides} | _values_by_path(
        _plain_value(changes or {})
    )
    changed = {key.partition(".")[0] for key in said}
    if changed - _NOT_DESCRIBED and "description" not in changed:
        raw.pop("description", None)
    folder = file.resolve().parent if file and file.is_file() else Path()  # a pipe has none
    return _with_absolute_paths(validate_scenario(raw, str(file or "scenario"), said, lines), folder)


def apply_override(raw: Any, text: str) -> None:
    """Change parsed YAML in place by a text of the form ``key.path=value``.

    Raises:
        ScenarioError: the text is not of this form, or the path leads through a value that is no section.
    """
    path, parsed = key_and_value(text)
    _change_key(raw, path, parsed, f"--set {text}", whole=True)


def key_and_value(text: str, several: bool = False) -> tuple[str, Any]:
    """Split a text of the form ``key.path=value``, and read its value.

    Args:
        text: as it follows ``--set``.
        several: whether the value is a list of values with commas between them, as in a sweep.

    Returns:
        The path, and the value or the list of values.

    Raises:
        ScenarioError: the text is not of this form, or a value cannot be read.
    """
    path, separator, value = text.partition("=")
    if not separator or not all(path.strip().split(".")):
        raise ScenarioError(f"--set {text}: expected: key.path=value, e.g. privacy.epsilon=2")
    try:
        return path.strip(), value_of(value, several)
    except UNREADABLE:
        expected = "a number, text, or list or mapping of YAML; quotes around text with # & * ! %, and no line breaks"
        raise ScenarioError(printable(f"--set {text}: cannot be read; expected: {expected}")) from None


def _change_key(raw: Any, path: str, value: Any, said: str, whole: bool = False) -> None:
    """Set a key in place; a mapping is merged into the section that is there, unless it is to be the whole one."""
    *sections, last = path.split(".")
    for key in sections:
        if isinstance(raw, dict) and raw.get(key) is None:
            raw[key] = {}
        raw = raw[key] if isinstance(raw, dict) else None
    if not isinstance(raw, dict):
        raise ScenarioError(printable(f"{said}: {'.'.join(sections)} is not a section of the scenario"))
    below = raw.get(last)
    if whole or not isinstance(value, dict) or not isinstance(below, dict) or {"scheme", "name"} & value.keys():
        raw[last] = value
        return
    for key, each in value.items():
        _change_key(below, str(key), each, f"{said}.{key}")


def _plain_value(value: Any) -> Any:
    """Turn a value of Python into what YAML would give; other values are left to the validation."""
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case Mapping():
            return {str(key): _plain_value(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain_value(each) for each in value]
        case np.generic() | np.ndarray():
            return value.tolist()
        case Path():
            return str(value)
    return value


def _values_by_path(changes: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Write the given value of every key path as ``key.path=value``, for errors."""
    said = {}
    for key, value in changes.items():
        said[above + key] = f"{above}{key}={value!r:.200}"
        said |= _values_by_path(value, f"{above}{key}.") if isinstance(value, Mapping) else {}
    return said


def validate_scenario(
    raw: Any, source: str, said: Mapping[str, str] | None = None, lines: Mapping[str, int] | None = None
) -> Scenario:
    """Validate parsed YAML.

    Args:
        raw: what was read.
        source: what errors name as the place of a wrong value.
        said: by the path of a key, what they name instead where the value came from elsewhere.
        lines: by the path of a key, the line of the source in which it stands.

    Raises:
        ScenarioError: one line about the first wrong key, with the number of others.
    """
    if not isinstance(raw, dict):
        kind = {type(None): "an empty file", list: "a list", str: "text"}.get(type(raw), type(raw).__name__)
        raise ScenarioError(f"{source}: a scenario is a mapping of keys to values, got {kind}")
    for section, found in raw.items():
        if isinstance(found, dict) and True in found:  # YAML 1.1 reads the key on as true
            raw = raw | {section: {"on" if key is True else key: value for key, value in found.items()}}
    try:
        scenario = Scenario.model_validate(raw)
        check_name(scenario.client.loss)
        # A custom model is checked when it is built; an external app's model is not checked.
        if scenario.data.name != "external" and not is_import_path(scenario.model.name):
            architecture_of(scenario.model)
            scenario.submodels.check_model(scenario.model)
    except ValidationError as error:
        key, words = explain_error(error)
    except (ValueError, ModelError) as error:
        key, words = "", str(error)
    else:
        key, words = next(_mistaken_keys(raw, scenario), ("", ""))
        if not key:
            return scenario
    if key in (said or {}):
        raise ScenarioError(printable(f"{said[key]}: {words}"))  # type: ignore[index]
    line = _line_of(key, lines or {})
    where = source + (f", line {line}" if line else "") + (f": {key}" if key else "")
    raise ScenarioError(printable(f"{where}: {words}"))


def _line_of(key: str, lines: Mapping[str, int]) -> int | None:
    """Find the line of a key; for one that is missing, that of the section it should be in."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key)


def find_scenario(path: str | Path) -> Path:
    """Find the file of a scenario, given by path or by the name of a shipped one.

    Raises:
        ScenarioError: there is none; the line names the shipped ones, and a similar name.
    """
    file = Path(path)
    if file.is_file() or (file.is_fifo() and not file.resolve().exists()):  # a shell's <(command) has no file
        return file
    shipped = SHIPPED / f"{path}.yaml"
    if shipped.is_file():
        return shipped
    names = [found.stem for found in shipped_files()]
    close = difflib.get_close_matches(file.stem, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    kind = "a folder" if file.is_dir() else "no file" if file.exists() else "no such file"
    raise ScenarioError(f"{path}: {kind}; expected: a YAML file or a shipped scenario ({', '.join(names)}){hint}")


def shipped_files() -> list[Path]:
    """List the scenarios that come with fedamp, in order of their names."""
    return sorted(SHIPPED.glob("*.yaml"))


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario, for editors; keys of the installed extensions are in it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()}


def _mistaken_keys(raw: Any, read: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Find values that the validation would convert without a word, and numbers that are too large.

    A truth value would become a number or the other way round; squares of large numbers, or arrays of that size, would
    overflow.

    Yields:
        The path of the key, and what is expected.
    """
    if isinstance(raw, dict) and isinstance(read, BaseModel):
        for key, value in raw.items():
            yield from _mistaken_keys(value, getattr(read, key, None), f"{path}.{key}".lstrip("."))
    elif isinstance(raw, list) and isinstance(read, list | tuple):
        for value, each in zip(raw, read, strict=False):
            yield from _mistaken_keys(value, each, path)
    elif all(isinstance(each, bool | int | float | str) for each in (raw, read)):
        if isinstance(raw, bool) != isinstance(read, bool):
            yield path, "expected: true or false for a choice, and a number for a number"
        most = MOST_COUNTED if isinstance(read, int) else MOST_MEASURED
        if isinstance(read, int | float) and read > most and not path.endswith(("seed", "max_bytes")):
            yield path, f"got {read:g}; expected: at most {most:g}"


def _read_lines(file: Path) -> tuple[Any, Mapping[str, int]]:
    """Read the content of a file, and the line of every key."""
    try:
        loader = Loader(read_own(file, LARGEST_FILE).decode())
        return loader.get_single_data(), loader.lines
    except UnicodeDecodeError:
        raise ScenarioError(f"{file}: not a text file in UTF-8; expected: a YAML file") from None
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read ({error.strerror})") from None
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        if problem == "but found another document":
            problem = "a second document begins; a scenario is one document"
        raise ScenarioError(f"{file}{where}: not valid YAML: {problem}") from None


def _with_absolute_paths(scenario: Scenario, folder: Path) -> Scenario:
    """Make the paths of a scenario absolute, so that its copy in a run folder finds the same files."""
    data, model = scenario.data, scenario.model
    dataset = getattr(data, "dataset", None)
    initial = model.initial
    if initial is not None and not (folder / initial).exists():  # one that is known by name, from ``make data``
        initial = str(folder_of(initial) or initial)
    imports = any(is_import_path(name) and not name.startswith(PREFIX) for name in (model.name, scenario.client.loss))
    paths: dict[str, dict[str, str | None]] = {
        "data": {
            "path": getattr(data, "path", None),
            "dataset": dataset if dataset and (folder / dataset).is_dir() else None,
        },
        # A custom model or loss: the scenario of a run folder must find it in the same place.
        "model": {"initial": initial, "folder": (model.folder or "") if imports else None},
    }
    for section, key, _ in marked_keys(OwnersFile):
        paths.setdefault(section, {})[key] = getattr(getattr(scenario, section), key)
    changes = {}
    for section, found in paths.items():
        absolute = {key: str((folder / path).resolve()) for key, path in found.items() if path is not None}
        changes[section] = getattr(scenario, section).model_copy(update=absolute)
    return scenario.model_copy(update=changes)
