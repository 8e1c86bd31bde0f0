"""Makes docs/research/messages.md: each line that a server, a node and the doctor can print, and what to do then.

    python docs/site/messages.py

The lines are read from the sources: what is raised, logged, printed, or a check's verdict. A varying part is `…`.
docs/site/messages.yaml has what to do.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "research" / "messages.md"
SECURE, POPULATION = "extensions/secure", "extensions/population"
PARTS = {
    "doctor": ["extensions/deployment/doctor.py", "client/policy.py"],
    "commands of an operator": ["extensions/deployment/membership.py"],
    "node": [
        *(
            f"client/{name}.py"
            for name in ("app", "capture", "configuration", "node", "policy", "program", "proofs", "worker")
        ),
        *(f"{SECURE}/{name}.py" for name in ("participant", "member", "protocol")),
        f"{POPULATION}/node.py",
    ],
    "server": [
        *("server/app.py", "server/journal.py", "server/loop.py", "server/observers.py", "server/preflight.py"),
        *("server/setup.py", "strategies", "runs/checkpoint.py", "runs/folder.py", "runs/ledger.py", "runs/records.py"),
        *(f"engines/{name}.py" for name in ("deployment", "flower", "wire")),
        *(f"{SECURE}/{name}.py" for name in ("collector", "secure_sums", "terms")),
        f"{POPULATION}/account.py",
        *("extensions/trackers/observers.py", "errors.py"),
    ],
    "cluster": [f"engines/{name}.py" for name in ("ray", "ray_driver", "ray_workers", "simulation")],
}
AS_IT_SAYS = "as the line says after `expected`"
OPENING = """# It says X: do Y

`python docs/site/messages.py` writes this page from the sources. It has each line that the doctor, a node, the server
and a cluster can print, in the order of letters. `…` stands for what varies. Search the page for a few words of
your line. Lines about a scenario, data or a model say themselves what is accepted, and where: they are not listed.
"""
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
VARIES = "…"
MOST = 40
"""Templates of one place at most: more alternatives are shortened to a varying part."""


@dataclass(frozen=True)
class Line:
    """A line that can be printed.

    Attributes:
        template: its words, `…` for what varies.
        kind: `error`, a level of a log, `printed`, or `check`.
        place: file and line.
    """

    template: str
    kind: str
    place: str


class Words:
    """Templates of expressions in one module.

    Args:
        tree: of the module.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self.module = tree

    def of(self, node: ast.AST | None, around: ast.AST, depth: int = 0) -> list[str]:
        """All templates of an expression inside a function."""
        several: list[list[str]]
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                several = [
                    self.of(each.value, around, depth + 1)
                    if isinstance(each, ast.FormattedValue)
                    else self.of(each, around)
                    for each in values
                ]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                several = [self.of(left, around, depth), self.of(right, around, depth)]
            case ast.BinOp(left=left, op=ast.Mod()):
                return self.of(left, around, depth)
            case ast.BinOp(left=ast.Constant() | ast.JoinedStr() as left, op=ast.Mult()):
                return ["", *self.of(left, around, depth)]
            case ast.IfExp(body=words, orelse=ast.Constant(value=None)):  # None is no line
                return self.of(words, around, depth)
            case ast.IfExp(body=body, orelse=other):
                return [*self.of(body, around, depth), *self.of(other, around, depth)]
            case ast.BoolOp(values=values):
                return [each for value in values for each in self.of(value, around, depth)]
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "strip")):
                return self.of(value, around, depth)
            case ast.Name(id=name) if depth < 4:
                found = self._assigned(name, around) or self._assigned(name, self.module)
                return list(dict.fromkeys(each for value in found for each in self.of(value, around, depth + 1))) or [
                    VARIES
                ]
            case _:
                return [VARIES]
        if _count(several) > MOST:
            several = [each if len(each) == 1 else [VARIES] for each in several]
        return list(dict.fromkeys("".join(each) for each in product(*several)))

    @staticmethod
    def _assigned(name: str, around: ast.AST) -> Iterator[ast.AST] | list[ast.AST]:
        found: list[ast.AST] = []
        scope = around.body if isinstance(around, ast.Module) else list(ast.walk(around))
        for node in scope:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        found.append(node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                found += [node.value] * (isinstance(node.target, ast.Name) and node.target.id == name)
        return found


def _count(several: list[list[str]]) -> int:
    number = 1
    for each in several:
        number *= len(each)
    return number


def sites(tree: ast.AST, around: ast.AST | None = None) -> Iterator[tuple[str, list[ast.AST], ast.AST, int]]:
    """Each place that prints, logs, raises or judges: its kind, the expressions of its words, and its function."""
    around = around or tree
    for node in ast.iter_child_nodes(tree):
        inner = node if isinstance(node, ast.FunctionDef) else around
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name), args=[first, *_])) if re.search(
                r"Error$|^Interrupted$", name
            ):
                yield "error", [first], around, node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"), args=[first]):
                yield "error", [first], around, node.lineno  # of an error whose class has its words
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[first, *_]) if (
                level in LEVELS
            ):
                yield level, [first], around, node.lineno
            case ast.Call(
                func=ast.Name(id="print" | "tell" | "say_line" | "_print_line" | "caution"), args=[first, *_]
            ):
                yield "printed", [first], around, node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn"), args=[first, *_]):
                yield "printed", [first], around, node.lineno
            case ast.Call(func=ast.Name(id="_check_of"), args=[name, _, found, *cure]):
                match found:
                    case ast.IfExp(body=passes, orelse=fails) | ast.BoolOp(values=[fails, passes]):
                        yield "check", [name, passes], around, node.lineno
                        yield "check", [name, fails, *cure], around, node.lineno
                    case _:
                        yield "check", [name, found, *cure], around, node.lineno
            case ast.Call(func=ast.Name(id="Check"), args=[name, _, found]):
                yield "check", [name, found], around, node.lineno
            case ast.Call(func=ast.Attribute(attr="of_failure"), args=[name, found], keywords=fails):
                yield "check", [name, found], around, node.lineno
                for keyword in fails:
                    yield "check", [name, keyword.value], around, node.lineno
        yield from sites(node, inner)


@cache
def lines(part: str) -> list[Line]:
    """All lines of a part, in the order of the sources."""
    found = []
    for name in PARTS[part]:
        place = ROOT / "fedamp" / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            tree = ast.parse(file.read_text("utf-8"))
            words = Words(tree)
            for kind, expressions, around, number in sites(tree):
                for each in product(*(words.of(expression, around) for expression in expressions)):
                    template = "; ".join(filter(None, [each[0], *each[1:]])) if kind == "check" else each[0]
                    template = re.sub(r"%[-+.\d]*[sdgfr]", VARIES, template)
                    template = re.sub(r"\{[^{}]*\}", VARIES, template)
                    found.append(Line(" ".join(template.split()), kind, f"{file.relative_to(ROOT)}:{number}"))
    return found


def told(part: str) -> dict[str, str]:
    """What to do about each line of a part that has words of its own, by its template; in the order of letters.

    A line that only hands on another one, such as that of an error, is listed where the other one is made.
    """
    found = {line.template: cure(line) for line in lines(part) if has_words(line)}
    return dict(sorted(found.items(), key=lambda item: item[0].lstrip("…:;. ").lower()))


def has_words(line: Line) -> bool:
    """Whether a line has words of its own: three letters in a row."""
    return re.search(r"[^\W\d_]{3}", line.template) is not None


def cure(line: Line) -> str:
    """What to do about a line: as it says itself, or as this module says."""
    if re.search(r"\bexpected[\w .]*: ", line.template):
        return AS_IT_SAYS
    cures = known_cures()
    found = [each["do"] for each in cures["cures"] if re.search(each["says"], line.template)]
    found += [do for place, do in cures["rooms"].items() if line.place.startswith(f"fedamp/{place}")]
    if not found:
        raise LookupError(f"{line.place}: {line.template}; expected: what to do about it, in docs/site/messages.yaml")
    return str(found[0])


@cache
def known_cures() -> dict[str, Any]:
    """What to do, by patterns of lines, and by rooms for all others."""
    return yaml.safe_load((ROOT / "docs" / "site" / "messages.yaml").read_text("utf-8"))


def page() -> str:
    """The page."""
    parts = [OPENING]
    for part in PARTS:
        rows = [f"| {template.replace('|', chr(92) + '|')} | {do} |" for template, do in told(part).items()]
        parts.append(f"## Lines of the {part}\n\n| it says | do |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(print(f"{PAGE.relative_to(ROOT)}: {sum(len(told(part)) for part in PARTS)} lines"))
