"""Scenario files: reading, ``--set`` overrides, writing, and errors that a person can act on.

Every error is one line: the file, the path of the key, what was found, and what is accepted.
"""

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from fedamp.errors import ScenarioError
from fedamp.models.architectures import check_submodels
from fedamp.scenario import Scenario

_CHECKOUT = Path(__file__).resolve().parents[2] / "scenarios"
SHIPPED = _CHECKOUT if _CHECKOUT.is_dir() else Path(sys.prefix) / "share" / "fedamp" / "scenarios"


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and validate a scenario.

    Args:
        path: a YAML file, or the name of a shipped scenario (``digits``).
        overrides: texts of the form ``key.path=value``; values are YAML.

    Returns:
        The scenario, with data and model paths made absolute (relative ones start at the scenario's folder).

    Raises:
        ScenarioError: with one line naming file, key path, and accepted values.
    """
    file = find(path)
    raw = _read(file)
    for override in overrides:
        _apply(raw, override)
    return _resolve_paths(validate(raw, str(file), overrides), file.parent)


def validate(raw: Any, source: str, overrides: Sequence[str] = ()) -> Scenario:
    """Validate parsed YAML; ``source`` names it in errors."""
    if not isinstance(raw, dict):
        raise ScenarioError(f"{source}: a scenario is a mapping of keys to values, got {_kind(raw)}")
    try:
        scenario = Scenario.model_validate(raw)
        check_submodels(scenario.model, scenario.submodels)
    except ValidationError as error:
        raise ScenarioError(_one_line(error, raw, source, overrides)) from None
    except ValueError as error:
        raise ScenarioError(_printable(f"{source}: {error}")) from None
    return scenario


def find(path: str | Path) -> Path:
    """The file of a scenario given by path or by the name of a shipped one."""
    file = Path(path)
    if file.is_file():
        return file
    shipped = SHIPPED / f"{path}.yaml"
    if shipped.is_file():
        return shipped
    names = [found.stem for found in shipped_files()]
    close = difflib.get_close_matches(Path(path).stem, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    kind = "a folder" if file.is_dir() else "no such file"
    raise ScenarioError(f"{path}: {kind}; accepted: a YAML file or a shipped scenario ({', '.join(names)}){hint}")


def shipped_files() -> list[Path]:
    """The scenarios that come with fedamp, by name."""
    return sorted(SHIPPED.glob("*.yaml"))


def dump(scenario: Scenario) -> str:
    """The scenario as YAML, every default written out; reading it back gives an equal scenario."""
    return yaml.safe_dump(json.loads(scenario.model_dump_json()), sort_keys=False, allow_unicode=True)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a scenario, for editors."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# --- reading ----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice instead of silently keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    except UnicodeDecodeError:
        raise ScenarioError(f"{file}: not a text file in UTF-8; accepted: a YAML file") from None
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ScenarioError(f"{file}{where}: not valid YAML: {problem}") from None


def _apply(raw: Any, override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ScenarioError(f"--set {override}: accepted: key.path=value, e.g. privacy.epsilon=2")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise ScenarioError(f"--set {override}: the value is not valid YAML") from None
    section = raw
    for key in keys[:-1]:
        if not isinstance(section, dict):
            break
        section = section.setdefault(key, {})
    if not isinstance(section, dict):
        raise ScenarioError(f"--set {override}: {'.'.join(keys[:-1])} is not a section of the scenario")
    section[keys[-1]] = value


def _resolve_paths(scenario: Scenario, folder: Path) -> Scenario:
    changes: dict[str, Any] = {}
    model: dict[str, str] = {}
    path = getattr(scenario.data, "path", None)
    if path is not None:
        changes["data"] = scenario.data.model_copy(update={"path": str((folder / path).resolve())})
    dataset = getattr(scenario.data, "dataset", None)
    if dataset is not None and (folder / dataset).is_dir():
        changes["data"] = scenario.data.model_copy(update={"dataset": str((folder / dataset).resolve())})
    if scenario.model.initial is not None:
        model["initial"] = str((folder / scenario.model.initial).resolve())
    if ":" in scenario.model.name:  # one's own: a run folder's scenario must find it where the first one did
        model["folder"] = str((folder / (scenario.model.folder or "")).resolve())
    if model:
        changes["model"] = scenario.model.model_copy(update=model)
    return scenario.model_copy(update=changes) if changes else scenario


# --- errors -----------------------------------------------------------------------------------------------------------


def _one_line(error: ValidationError, raw: Any, source: str, overrides: Sequence[str]) -> str:
    details = error.errors(include_url=False)
    # An unknown key is usually the cause of what else is wrong (a misspelt key is also a missing one).
    details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    path, section = _walk(first["loc"], raw)
    name = ".".join(path)
    overridden = [text for text in overrides if text.partition("=")[0].strip() == name]
    where = f"--set {overridden[-1]}" if overridden else f"{source}: {name}" if name else source
    message = f"{where}: {_explain(first, path, section)}"
    others = len({tuple(_walk(detail["loc"], raw)[0]) for detail in details} - {tuple(path)})
    message += f" (and {others} more)" if others else ""
    return _printable(message)


def _printable(message: str) -> str:
    """Keys and values are a stranger's text: nothing of it may break the line or hide in it."""
    return "".join(character if character.isprintable() else "?" for character in message)


def _explain(detail: Any, path: list[str], section: type[BaseModel] | None) -> str:
    kind, found = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        known = list(section.model_fields) if section else []
        close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"unknown key; {hint}accepted keys: {', '.join(known)}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    accepted = _accepted(path)
    if kind == "missing":
        return f"missing; accepted: {accepted}"
    if kind == "union_tag_not_found":
        return f"missing key {detail['ctx']['discriminator']}; accepted: {accepted}"
    if kind == "union_tag_invalid":
        tag, expected = str(detail["ctx"]["tag"]), detail["ctx"]["expected_tags"].replace("'", "")
        close = difflib.get_close_matches(tag, expected.split(", "), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{detail['ctx']['discriminator'].strip(chr(39))} is {_show(tag)}; accepted: {expected}{hint}"
    return f"got {_show(found)}; accepted: {accepted}"


def _walk(location: tuple[int | str, ...], raw: Any) -> tuple[list[str], type[BaseModel] | None]:
    """The key path that a person wrote, and the section in which its last key stands.

    pydantic's locations also name the branches of unions (``data.digits.clients``, ``privacy.clip.float``).
    """
    path: list[str] = []
    section: type[BaseModel] | None = Scenario
    choices: list[type[BaseModel]] = []
    for step in location:
        if choices:
            tagged = [choice for choice in choices if step in _tags(choice) or step == choice.__name__]
            section = tagged[0] if tagged else choices[0] if len(choices) == 1 else None
            single, choices = len(choices) == 1 and not tagged, []
            if not single:
                continue
        if section is None or (isinstance(step, str) and step not in section.model_fields and _is_branch(step, raw)):
            continue
        path.append(str(step))
        raw = raw.get(step) if isinstance(raw, dict) else None
        field = section.model_fields.get(str(step))
        if field is not None:
            choices = list(_sections(field.annotation))
            if not choices and step != location[-1]:
                section = None
    return path, section


def _is_branch(step: str, raw: Any) -> bool:
    return not (isinstance(raw, dict) and step in raw)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    for name in ("scheme", "name"):
        if name in section.model_fields:
            return tuple(str(tag) for tag in get_args(section.model_fields[name].annotation))
    return ()


def _accepted(path: list[str]) -> str:
    """What the schema accepts at a key path, in words."""
    schema = Scenario.model_json_schema()
    definitions = schema["$defs"]
    nodes = [schema]
    for key in path:
        options = [option for node in nodes for option in _options(node, definitions)]
        nodes = [option["properties"][key] for option in options if key in option.get("properties", {})]
    words = [word for node in nodes for option in _options(node, definitions) for word in [_words(option)] if word]
    return " or ".join(dict.fromkeys(words)) or "see fedamp scenarios schema"


def _options(node: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return _options(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    branches = node.get("anyOf") or node.get("oneOf")
    if branches:
        return [option for branch in branches for option in _options(branch, definitions)]
    return [node]


def _words(option: dict[str, Any]) -> str:
    if "const" in option:
        return str(option["const"])
    if "enum" in option:
        return ", ".join(map(str, option["enum"]))
    kind = option.get("type")
    if kind == "object":
        tag = next((p["const"] for p in option.get("properties", {}).values() if "const" in p), None)
        keys = ", ".join(option.get("properties", {}))
        return f"a section with {'scheme or name ' + tag if tag else 'keys ' + keys}"
    if kind in ("number", "integer"):
        limits = [
            f"{sign} {option[key]:g}"
            for key, sign in (
                ("exclusiveMinimum", ">"),
                ("minimum", ">="),
                ("exclusiveMaximum", "<"),
                ("maximum", "<="),
            )
            if key in option
        ]
        return " ".join([{"number": "a number", "integer": "an integer"}[kind], " and ".join(limits)]).strip()
    if kind == "string":
        return f"text matching {option['pattern']}" if "pattern" in option else "text"
    if kind == "array" and "prefixItems" in option:
        return f"[{', '.join(_words(item) for item in option['prefixItems'])}]"
    if kind == "array":
        return f"a list of {_words(option.get('items', {})) or 'values'}"
    return {"boolean": "true or false", "null": ""}.get(str(kind), "")


def _show(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: Any) -> str:
    return {type(None): "an empty file", list: "a list", str: "text"}.get(type(value), type(value).__name__)
