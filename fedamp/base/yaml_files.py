"""Read YAML as people write it: each key once, truth and numbers as in YAML 1.2, and a limit on what aliases write out.

Scenarios, a node's policy and other files that people write are read through :class:`Loader`. Values on the
command line (``--set key=value``) are read by :func:`value_of`. The module knows no key of these files.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

LARGEST = 100_000  # values
UNREADABLE = (yaml.YAMLError, RecursionError, ValueError)  # what reading raises


class Loader(yaml.SafeLoader):
    """YAML loader that refuses a key written twice, merged mappings and keys that are no text, instead of guessing.

    Attributes:
        lines: the line of every key that was read, from 1, by its path (``privacy.clip``).
    """

    lines: Mapping[str, int]

    def get_single_node(self) -> yaml.Node | None:
        """Read the document, note the lines of its keys, and refuse what aliases make too large."""
        node = super().get_single_node()
        self.lines = {}
        if node is not None:
            _expanded_size(node, {})
            self.lines = dict(_lines_by_path(node))
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; a yaml.YAMLError names the line of a key that is repeated, is no text, or is ``<<``."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                problem = "<< merges mappings, which is not accepted; write the keys out, or alias the whole section"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is duplicated", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# Truth and numbers are read as YAML 1.2 reads them: YAML 1.1 takes yes for true, 010 for 8, 1:30 for 90.
_PLAIN = {
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)",
    "float": r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))"
    r"|\.(?:nan|NaN|NAN)",
}
Loader.yaml_implicit_resolvers = {
    first: kept
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    if (kept := [each for each in resolvers if each[0].rpartition(":")[2] not in {*_PLAIN, "timestamp"}])
}
for _kind, _form in _PLAIN.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), list("-+.0123456789tTfF"))


class _FlowLoader(Loader):
    """Loader of a value on a command line; it refuses comments, anchors, aliases, tags and directives.

    YAML would silently drop them, or take a value from elsewhere.
    """

    def scan_to_next_token(self) -> None:
        """Skip blanks, and refuse the letters with which such a thing begins."""
        while self.peek() == " ":
            self.forward()
        if self.peek() in "#&*!%":
            raise yaml.scanner.ScannerError(None, None, f"a value begins with {self.peek()}", self.get_mark())
        super().scan_to_next_token()


def value_of(text: str, several: bool = False) -> Any:
    """Read the value that a word of a command line stands for; such a word has no comments.

    >>> value_of("1e-5"), value_of("yes"), value_of("0.1, 0.2", several=True)
    ('1e-5', 'yes', [0.1, 0.2])

    Args:
        text: a list, a mapping and a quoted text are read as YAML. Else it is a number, a truth value or null, as in
            YAML 1.2; or the text itself, to the letter.
        several: whether the word is a list of values with commas between them.

    Raises:
        One of ``UNREADABLE``: the YAML cannot be read, or a part of it would be dropped.
    """
    word = f"[{text}]" if several else text.strip()
    if word.startswith(("[", "{", '"', "'")):
        if not word.isprintable():
            raise ValueError("a line break")  # YAML would make it a blank
        return yaml.load(word, Loader=_FlowLoader)
    kind: str = Loader("").resolve(yaml.ScalarNode, word, (True, False))  # type: ignore[no-untyped-call]
    is_text = kind.rpartition(":")[2] not in {"null", *_PLAIN}
    return text if is_text else Loader("").construct_object(yaml.ScalarNode(kind, word))


def _expanded_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Count the values of a node once its aliases are written out: ten lines of aliases can be a billion of them.

    Raises:
        yaml.YAMLError: more than ``LARGEST``, or endlessly many, because the node holds itself.
    """
    if id(node) not in sizes:
        sizes[id(node)] = LARGEST  # for a reference to it from within
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (part for pair in below for part in pair) if isinstance(node, yaml.MappingNode) else below
        size = 1 + sum(_expanded_size(part, sizes) for part in pairs)
        if size > LARGEST:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {LARGEST:,} values when its aliases are written out", node.start_mark
            )
        sizes[id(node)] = size
    return sizes[id(node)]


def _lines_by_path(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path of every key below a node, and its line from 1."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            yield below, key.start_mark.line + 1
            yield from _lines_by_path(value, below)
