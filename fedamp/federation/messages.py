"""One line about an invalid scenario, from pydantic's errors and the JSON schema."""

import difflib
from functools import cache
from typing import Any

from pydantic import ValidationError

from fedamp.federation.scenario import Scenario

Node = dict[str, Any]
"""A node of the JSON schema."""

_SHORT = {"lr": "learning_rate", "optimiser": "optimizer", "wd": "weight_decay", "noise": "noise_multiplier"}
"""Names of keys in other tools."""

_LIMITS = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}


def explanation(error: ValidationError) -> tuple[str, str]:
    """The path of the wrong key (empty: the scenario as a whole), and the expected values.

    It describes the first of several errors, and counts the others.
    """
    # An unknown key is usually the cause of what else is wrong (a misspelt key is also a missing one).
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    keys, section, accepted = _walk(details[0])
    others = len({tuple(_walk(detail)[0]) for detail in details} - {tuple(keys)})
    words = _words_of(details[0], keys, section, accepted)
    return ".".join(keys), words + (f" (and {others} more)" if others else "")


def _words_of(detail: Any, keys: list[str], section: list[Node], accepted: list[Node]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = list(dict.fromkeys(key for node in section for key in node.get("properties", {})))
        close = _meant(keys, known)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        return f"unknown key; {hint}expected keys: {', '.join(known)}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        tag, expected = str(context["tag"]), context["expected_tags"].replace("'", "")
        close = difflib.get_close_matches(tag, expected.split(", "), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{context['discriminator'].strip(chr(39))} is {_shortened(tag)}; expected: {expected}{hint}"
    words = _section_of(accepted) or " or ".join(dict.fromkeys(filter(None, map(_accepted, accepted))))
    words = words or "see fedamp scenarios schema"
    found = {"missing": "missing", "union_tag_not_found": f"missing key {context.get('discriminator')}"}
    return f"{found.get(kind) or 'got ' + _shortened(detail['input'])}; expected: {words}"


def _meant(keys: list[str], known: list[str]) -> list[str]:
    """Likely corrections of a key: one of its section, or one of another section with its path."""
    name = _SHORT.get(keys[-1], keys[-1])
    if name in known:
        return [name]
    sections = {path: _options(node) for path, node in _schema()["properties"].items()}
    elsewhere = [f"{path}.{name}" for path, nodes in sections.items() if any(name in _keys(node) for node in nodes)]
    others = [path for path in elsewhere if path != ".".join(keys)]
    return others or difflib.get_close_matches(name, known, n=1, cutoff=0.5)


def _keys(node: Node) -> Node:
    keys: Node = node.get("properties", {})
    return keys


def _walk(detail: Any) -> tuple[list[str], list[Node], list[Node]]:
    """The path as written in the file, the section of its last key, and what is expected there.

    pydantic's locations also name places in lists and branches of unions (``data.digits.clients``).
    """
    keys: list[str] = []
    section: list[Node] = []
    nodes = _options(_schema())
    *_, last = detail["loc"] or [None]
    for step in detail["loc"]:
        if isinstance(step, int):
            nodes = [option for node in nodes for option in _sections_listed(node)] or nodes
        branches = [node for node in nodes if step in _tags(node)]
        below = [node["properties"][step] for node in nodes if step in node.get("properties", {})]
        unknown = step is last and detail["type"] == "extra_forbidden"
        if branches and len(nodes) > 1:
            nodes = branches
        elif below or unknown:
            keys.append(str(step))
            section, nodes = nodes, [option for node in below for option in _options(node)]
    return keys, section, nodes


@cache
def _schema() -> Node:
    return Scenario.model_json_schema()


def _options(node: Node) -> list[Node]:
    """The alternatives of a node: references followed, unions split."""
    if "$ref" in node:
        return _options(_schema()["$defs"][node["$ref"].rsplit("/", 1)[1]])
    branches = node.get("anyOf") or node.get("oneOf") or []
    return [option for branch in branches for option in _options(branch)] or [node]


def _sections_listed(node: Node) -> list[Node]:
    """The possible sections of a list."""
    return [option for option in _options(node.get("items", {})) if "properties" in option]


def _tags(node: Node) -> list[Any]:
    """Tags by which pydantic may name a section among others: its class, scheme or name."""
    properties = node.get("properties", {})
    tagged = [properties[key] for key in ("scheme", "name") if key in properties]
    return [node.get("title"), *(tag for kind in tagged for tag in [kind.get("const"), *kind.get("enum", [])])]


def _section_of(nodes: list[Node]) -> str:
    """Sections that differ by name or scheme, as text; empty for other nodes."""
    for key in ("scheme", "name"):
        tags = [tag for node in nodes for tag in _tags_of(node, key)]
        if len(nodes) > 1 and len(tags) >= len(nodes) and all(_tags_of(node, key) for node in nodes):
            return f"a section with {key} {', '.join(tags)}, for example {{{key}: {tags[0]}}}"
    return ""


def _tags_of(node: Node, key: str) -> list[str]:
    tag = _keys(node).get(key, {})
    return [str(tag["const"])] if "const" in tag else [str(each) for each in tag.get("enum", [])]


def _accepted(node: Node) -> str:
    """A kind of value as text; empty for null."""
    kind, properties = node.get("type"), node.get("properties", {})
    if "const" in node or "enum" in node:
        return str(node["const"]) if "const" in node else ", ".join(map(str, node["enum"]))
    if kind == "object":
        tag = next((value["const"] for value in properties.values() if "const" in value), None)
        if not properties:
            return "a section of names"
        return f"a section with {f'scheme or name {tag}' if tag else 'keys ' + ', '.join(properties)}"
    if kind in ("number", "integer"):
        limits = " and ".join(f"{sign} {node[key]:g}" for key, sign in _LIMITS.items() if key in node)
        return f"{'a number' if kind == 'number' else 'an integer'} {limits}".strip()
    if kind == "string":
        return f"text matching {node['pattern']}" if "pattern" in node else "text"
    if kind == "array" and "prefixItems" in node:
        return f"[{', '.join(map(_accepted, node['prefixItems']))}]"
    if kind == "array":
        return f"a list of {_accepted(node.get('items', {})) or 'values'}"
    return "true or false" if kind == "boolean" else ""


def _shortened(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
