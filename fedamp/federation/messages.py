"""Write words about a scenario from its JSON schema: about each key, and one line about an invalid value.

The schema is the only source, so a new key needs no words here but those in :data:`CHANGES`. Reading a scenario
(:mod:`fedamp.federation.reader`) explains errors with it; ``fedamp explain`` shows a key.

>>> explain_key("rounds")["default"]
'none: it must be given'
"""

import difflib
import json
from functools import cache
from typing import Any

from pydantic import ValidationError

from fedamp.errors import ScenarioError
from fedamp.federation.scenario import Scenario

Node = dict[str, Any]
"""Node of the JSON schema."""

_SHORT = {"lr": "learning_rate", "optimiser": "optimizer", "wd": "weight_decay", "noise": "noise_multiplier"}
"""Names of keys in other tools, with fedamp's names."""

_COST = "noise_multiplier: auto and clip: auto, or the epsilon of a given noise"
CHANGES = {
    "rounds data.clients check_in submodels": f"the cohort, so {_COST}",
    "mixing privacy.noise privacy.epsilon privacy.delta privacy.group_size privacy.precision": _COST,
    "privacy.noise_multiplier": "privacy.epsilon must be left out for 0, and be given for auto; clip: auto",
    "privacy.clip": "noise is noise_multiplier x clip; the best server.learning_rate",
    "privacy.unit": "data.clients may be left out for sample, and client.steps is 1; noise_multiplier: auto",
    "client.steps client.epochs": "one of the two alone; steps is 1 where privacy.unit is sample",
    "server.learning_rate": "mixing.width, which hides steps of this length",
    "server.momentum": "clip: auto, which allows for it; the best server.learning_rate is smaller by 1 - momentum",
    "engine.kind": "engine.address is for ray; faults.killed_workers, too",
}
"""Words about other keys that follow from some keys, and from those below them."""

_LIMITS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def explain_error(error: ValidationError) -> tuple[str, str]:
    """Explain an invalid scenario: the first of several errors, with the number of the others.

    Args:
        error: of the validation of a whole scenario.

    Returns:
        The path of the wrong key (empty: the scenario as a whole), and what was found and is expected.
    """
    # An unknown key is usually the cause of what else is wrong (a misspelt key is also a missing one).
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    keys, section, accepted = _walk_error(details[0])
    others = len({tuple(_walk_error(detail)[0]) for detail in details} - {tuple(keys)})
    words = _words_of(details[0], keys, section, accepted)
    return ".".join(keys), words + (f" (and {others} more)" if others else "")


def _words_of(detail: Any, keys: list[str], section: list[Node], accepted: list[Node]) -> str:
    """Write what was found and is expected.

    Args:
        detail: an error as pydantic describes it.
        keys: path of the key.
        section: schemas of the sections in which the key stands.
        accepted: schemas of its accepted values.
    """
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = list(dict.fromkeys(key for node in section for key in node.get("properties", {})))
        close = _likely_keys(keys, known)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        return f"unknown key; {hint}expected keys: {', '.join(known)}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        tag, expected = str(context["tag"]), context["expected_tags"].replace("'", "")
        close = difflib.get_close_matches(tag, expected.split(", "), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{context['discriminator'].strip(chr(39))} is {_shortened_value(tag)}; expected: {expected}{hint}"
    words = _expected_values(accepted)
    found = {"missing": "missing", "union_tag_not_found": f"missing key {context.get('discriminator')}"}
    return f"{found.get(kind) or 'got ' + _shortened_value(detail['input'])}; expected: {words}"


def described_keys() -> dict[str, str]:
    """List what each key of a scenario does, by its path, in the schema's words."""
    return {path: _description_of(nodes) for path, nodes in _schemas_by_path().items()}


def accepted_values(key: str) -> list[str]:
    """List the words that a key accepts; empty for a key that accepts other values, for shell completion."""
    options = [option for node in _schemas_by_path().get(key, ()) for option in _alternatives_of(node)]
    words = [word for option in options for word in [option.get("const"), *option.get("enum", [])]]
    words += [word for option in options if option.get("type") == "boolean" for word in ("true", "false")]
    return [str(word) for word in dict.fromkeys(words) if word is not None]


def explain_key(key: str) -> dict[str, str]:
    """Explain a key: what it does and accepts, its default, and which others change with it.

    Args:
        key: its path, such as ``privacy.clip``.

    Returns:
        Words by ``does``, ``accepts``, ``keys`` (of a section), ``default``, ``changes with it``.

    Raises:
        ScenarioError: no such key; the line names similar ones.
    """
    paths = _schemas_by_path()
    if key not in paths:
        close = difflib.get_close_matches(key, paths, n=3, cutoff=0.4) or list(_keys_of(_scenario_schema()))
        raise ScenarioError(f"{key}: no key of a scenario; expected: a path such as {', '.join(close)}")
    nodes = paths[key]
    defaults = dict.fromkeys(_default_of(node["default"]) for node in nodes if "default" in node)
    roots = {root: words for several, words in CHANGES.items() for root in several.split()}
    changes = [words for root, words in roots.items() if f"{key}.".startswith(f"{root}.")]
    inside = [root for root in roots if root.startswith(f"{key}.")]
    below = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == key]
    changes = changes or ([f"see {', '.join(inside)}"] if inside else ["nothing else"])
    options = [option for node in nodes for option in _alternatives_of(node)]
    one_section = len(options) == 1 and "properties" in options[0]
    return {
        "does": _description_of(nodes),
        "accepts": "a section with these keys" if one_section else _expected_values(options),
        **({"keys": ", ".join(below)} if below else {}),
        "default": " or ".join(defaults) or "none: it must be given",
        "changes with it": "; ".join(changes),
    }


def _default_of(value: Any) -> str:
    """Write a default; of a section its scheme or name, because each key has a default of its own."""
    if not isinstance(value, dict):
        return json.dumps(value)
    tags = {key: value[key] for key in ("scheme", "name") if key in value}
    return json.dumps(tags) if tags else "that of each key"


@cache
def _schemas_by_path() -> dict[str, list[Node]]:
    """Collect the schemas of every key, by its path: one for each section that has it."""
    found: dict[str, list[Node]] = {}

    def walk_schema(node: Node, above: str) -> None:
        for option in _alternatives_of(node):
            for key, below in _keys_of(option).items():
                found.setdefault(above + key, []).append(below)
                walk_schema(below, f"{above}{key}.")

    walk_schema(_scenario_schema(), "")
    return found


def _description_of(nodes: list[Node]) -> str:
    """Join the descriptions of a key; for a section, the first lines of its classes' docstrings, with their schemes."""
    if own := [node["description"] for node in nodes if "description" in node]:
        return " / ".join(dict.fromkeys(own))
    words = dict[str, list[str]]()
    for each in [option for node in nodes for option in _alternatives_of(node) if "properties" in option]:
        tags = [tag for key in ("scheme", "name") for tag in _tags_of(each, key)]
        words.setdefault(each.get("description", "").partition("\n")[0].replace("`", ""), []).extend(tags)
    if len(words) == 1:
        return next(iter(words))
    return " ".join(f"{', '.join(tags)}: {text}" for text, tags in words.items()) or "which of the variants"


def _expected_values(nodes: list[Node]) -> str:
    """Write which values are accepted: a choice of sections, or kinds of values."""
    words = _section_of(nodes) or " or ".join(dict.fromkeys(filter(None, map(_accepted_values, nodes))))
    return words or "see fedamp scenarios schema"


def _likely_keys(keys: list[str], known: list[str]) -> list[str]:
    """Find likely corrections of a key: one of its section, or one of another section with its path."""
    name = _SHORT.get(keys[-1], keys[-1])
    if name in known:
        return [name]
    sections = {path: _alternatives_of(node) for path, node in _scenario_schema()["properties"].items()}
    elsewhere = [f"{path}.{name}" for path, nodes in sections.items() if any(name in _keys_of(node) for node in nodes)]
    others = [path for path in elsewhere if path != ".".join(keys)]
    return others or difflib.get_close_matches(name, known, n=1, cutoff=0.5)


def _keys_of(node: Node) -> Node:
    """Return the schemas of a section's keys."""
    keys: Node = node.get("properties", {})
    return keys


def _walk_error(detail: Any) -> tuple[list[str], list[Node], list[Node]]:
    """Find the path as written in the file, the section of its last key, and what is expected there.

    pydantic's locations also name places in lists and branches of unions (``data.digits.clients``).
    """
    keys: list[str] = []
    section: list[Node] = []
    nodes = _alternatives_of(_scenario_schema())
    *_, last = detail["loc"] or [None]
    for step in detail["loc"]:
        if isinstance(step, int):
            nodes = [option for node in nodes for option in _sections_among(node.get("items"))] or nodes
        branches = [node for node in nodes if step in _section_tags(node)]
        below = [node["properties"][step] for node in nodes if step in node.get("properties", {})]
        unknown = step is last and detail["type"] == "extra_forbidden"
        if branches and len(nodes) > 1:
            nodes = branches
        elif below or unknown:
            keys.append(str(step))
            section, nodes = nodes, [option for node in below for option in _alternatives_of(node)]
        elif named := [option for node in nodes for option in _sections_named(node)]:
            keys.append(str(step))
            section, nodes = nodes, named
    return keys, section, nodes


@cache
def _scenario_schema() -> Node:
    """Compute the JSON schema of a scenario once."""
    return Scenario.model_json_schema()


def _alternatives_of(node: Node) -> list[Node]:
    """List the alternatives of a node: references followed, unions split."""
    if "$ref" in node:
        return _alternatives_of(_scenario_schema()["$defs"][node["$ref"].rsplit("/", 1)[1]])
    branches = node.get("anyOf") or node.get("oneOf") or []
    return [option for branch in branches for option in _alternatives_of(branch)] or [node]


def _sections_among(*schemas: Any) -> list[Node]:
    """List the sections among the alternatives of schemas; what is no schema, as where none is given, has none."""
    options = [option for schema in schemas if isinstance(schema, dict) for option in _alternatives_of(schema)]
    return [option for option in options if "properties" in option]


def _sections_named(node: Node) -> list[Node]:
    """List the possible sections of a mapping from names that people choose."""
    return _sections_among(node.get("additionalProperties"), *node.get("patternProperties", {}).values())


def _section_tags(node: Node) -> list[Any]:
    """List the tags by which pydantic may name a section among others: its class, scheme or name, or any constant."""
    properties = node.get("properties", {})
    tagged = [value for key, value in properties.items() if key in ("scheme", "name") or "const" in value]
    return [node.get("title"), *(tag for kind in tagged for tag in [kind.get("const"), *kind.get("enum", [])])]


def _section_of(nodes: list[Node]) -> str:
    """Write sections that differ by scheme, name or another constant; empty for other nodes."""
    constants = [key for node in nodes[:1] for key, value in _keys_of(node).items() if "const" in value]
    for key in dict.fromkeys(["scheme", "name", *constants]):
        tags = [tag for node in nodes for tag in _tags_of(node, key)]
        if len(nodes) > 1 and len(tags) >= len(nodes) and all(_tags_of(node, key) for node in nodes):
            return f"a section with {key} {', '.join(tags)}, for example {{{key}: {tags[0]}}}"
    return ""


def _tags_of(node: Node, key: str) -> list[str]:
    """List the words that a section accepts for its scheme or name."""
    tag = _keys_of(node).get(key, {})
    return [str(tag["const"])] if "const" in tag else [str(each) for each in tag.get("enum", [])]


def _accepted_values(node: Node) -> str:
    """Write a kind of value; empty for null."""
    kind, properties = node.get("type"), node.get("properties", {})
    most = next((f", at most {node[key]}" for key in ("maxItems", "maxProperties") if key in node), "")
    if "const" in node or "enum" in node:
        return str(node["const"]) if "const" in node else ", ".join(map(str, node["enum"]))
    if kind == "object":
        tag = next((value["const"] for value in properties.values() if "const" in value), None)
        if not properties:
            return f"a section of names{most}"
        return f"a section with {f'scheme or name {tag}' if tag else 'keys ' + ', '.join(properties)}"
    if kind in ("number", "integer"):
        limits = " and ".join(f"{sign} {node[key]:g}" for key, sign in _LIMITS.items() if key in node)
        return f"{'a number' if kind == 'number' else 'an integer'} {limits}".strip()
    if kind == "string":
        return f"text matching {node['pattern']}" if "pattern" in node else "text"
    if kind == "array" and "prefixItems" in node:
        return f"[{', '.join(map(_accepted_values, node['prefixItems']))}]"
    if kind == "array":
        return f"a list of {_accepted_values(node.get('items', {})) or 'values'}{most}"
    return "true or false" if kind == "boolean" else ""


def _shortened_value(value: Any) -> str:
    """Write a found value in one line of at most 60 letters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
