"""Read the numbers in files of Flower, NVFlare, Opacus, opake, pfl and jax_privacy; no library of these is needed.

No file is executed: Python is read as a syntax tree, a job of NVFlare as JSON, a ``pyproject.toml`` with the Python
files below it. Calls are recognised by name (:data:`TOOLS`), their numbers where they are literals, names that are
assigned once, arithmetic of these, or keys of Flower's ``run_config``. A file may be hostile: its size, its depth, its
numbers and the work for them are limited.

:func:`check_file` is the place to begin. A further tool is a function of checks and a line in ``TOOLS``.
"""

import ast
import json
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import add, mul, neg, sub, truediv
from pathlib import Path
from typing import Any
from warnings import catch_warnings

from fedamp.accounting import Relation
from fedamp.accounting.verify import Check, each_key_once
from fedamp.base.reading import read_regular
from fedamp.extensions.foreign.claims import Claims

GivenNumbers = dict[str, Any]  # by the name of a parameter; ``PRIVATE`` and ``UNKNOWN`` stand for what is no number
PRIVATE, UNKNOWN = "the size of a private batch", "not a number in the file"
_ARITHMETIC = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.Pow: math.pow}
_LARGEST = 2**53 - 1  # whole number that is read: up to here floating point computes without rounding
_LISTS, _TEXTS = {"max_grad_norm", "strategy"}, {"relation", "loss_reduction"}  # parameters that are no single number
_REORDERS = re.compile("[\u202a-\u202e\u2066-\u2069]")  # a person sees other numbers than a program

# What a file of others may cost: a megabyte of text becomes half a gigabyte of syntax tree.
_MOST_BYTES, _MOST_FILES, _MOST_FOLDERS = 1 << 18, 100, 1000  # of each file, and of a project
_MOST_CALLS, _MOST_STEPS = 100, 10_000  # known calls in a file or project, and expressions for the numbers of a file
_CONFIG = "tool.flwr.app.config."  # of Flower's apps, in a pyproject.toml
_LONGEST_LINE = 1000  # of TOML, whose reader takes the square of a key's depth


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that is known.

    Attributes:
        name: of the tool.
        parameters: in order, with defaults.
        checks: of the parameters' values.
    """

    name: str
    parameters: Mapping[str, Any]
    checks: Callable[[GivenNumbers, "FileContext"], Iterator[Check]]


@dataclass(frozen=True)
class FileContext:
    """Facts beside a call: what the caller says, and what else is in the file.

    Attributes:
        said: values of :class:`Claims` that the caller adds.
        weighted: clients report how many examples they have.
        calls: all known calls of the file, with their numbers.
    """

    said: Mapping[str, Any]
    weighted: bool = False  # clients report how many examples they have
    calls: Sequence[tuple[str, GivenNumbers]] = ()

    def claims(self, **found: Any) -> Iterator[Check]:
        """Yield the checks of these claims; a number that is not known is named.

        One round is charged where nobody says how many.
        """
        known = {name: value for name, value in found.items() if value is not None} | dict(self.said)
        if missing := [name for name, value in known.items() if isinstance(value, str) and name != "relation"]:
            names = ", ".join(f"{name} is {known[name]}" for name in missing)
            options = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
            yield Check("numbers", "unknown", f"{names}; expected: {options}")
            return
        if "rounds" not in known:
            yield Check("rounds", "caution", "not in the file: what follows is for one round; expected: --rounds")
        yield from Claims(**{"rounds": 1} | known).checks()

    def named(self, *names: str) -> list[GivenNumbers]:
        """Return the numbers of the calls of these names."""
        return [given for name, given in self.calls if name in names]


def check_file(path: Path, said: Mapping[str, Any]) -> list[Check]:
    """Check all calls that a file makes, by a :class:`ToolCall`. A call that is not understood is ``unknown``.

    Args:
        path: a file of Python, NVFlare's JSON, or a ``pyproject.toml``; UTF-8, at most 256 kB.
        said: values of :class:`Claims` that take the place of those in the file.

    Raises:
        ValueError: it cannot be read, holds no call that is known, or takes too much work.
    """
    try:
        found, rounds, weighted = _calls_of(path)
        if len(found) > _MOST_CALLS:
            raise ValueError(f"more than {_MOST_CALLS} calls that are known")
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError | MemoryError) else error
        raise ValueError(f"{path}: cannot be read ({reason}); expected: Python, JSON or a pyproject.toml") from None
    if not found:
        raise ValueError(f"{path}: no call that is known; expected one of {', '.join(TOOLS)}")
    calls = [(name, {key: _plain_parameter(key, each) for key, each in given.items()}) for name, given in found]
    asked = FileContext(({"rounds": rounds} if isinstance(rounds, int) else {}) | dict(said), weighted, calls)
    return [
        Check(f"{name}: {each.name}", each.verdict, each.found)
        for name, given in calls
        for each in _checks_of_tool(name, given, asked)
    ]


def _checks_of_tool(name: str, given: GivenNumbers, asked: FileContext) -> list[Check]:
    """Check a call; an error becomes a verdict ``unknown``."""
    try:
        return list(TOOLS[name].checks({**TOOLS[name].parameters, **given}, asked))
    except (ValueError, ArithmeticError) as error:
        return [Check("numbers", "unknown", str(error))]


def _calls_of(path: Path) -> tuple[list[tuple[str, GivenNumbers]], Any, bool]:
    """Find the known calls of a file.

    Returns:
        Names of calls, with their numbers; the number of rounds in a project's configuration; and whether clients are
        weighted by the examples that they report.
    """
    if path.suffix == ".json":
        return list(_known_components(json.loads(_visible_text(path), object_pairs_hook=each_key_once))), None, False
    config: dict[str, Any] = {}
    if path.suffix == ".toml":
        text = _visible_text(path)
        if max(map(len, text.splitlines()), default=0) > _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE} letters")
        keys = _flat_keys(tomllib.loads(text)).items()
        config = {key.removeprefix(_CONFIG): value for key, value in keys if key.startswith(_CONFIG)}
    found, weighted = list[tuple[str, GivenNumbers]](), False
    for file in _source_files(path.parent) if path.suffix == ".toml" else [path]:
        with catch_warnings(action="ignore"):  # of strange escapes
            tree = ast.parse(_visible_text(file), file.name)
        found += _Reader(tree, config).calls()
        weighted = weighted or _reports_examples(tree)
    return found, next((value for key, value in config.items() if key.endswith("num-server-rounds")), None), weighted


def _visible_text(file: Path) -> str:
    """Read the text of a file as a person sees it.

    Raises:
        OSError, ValueError: it is none, too large, or shown in another order than it is read.
    """
    text = read_regular(str(file), _MOST_BYTES).decode("utf-8-sig")
    if found := _REORDERS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"{file.name}, line {line}: U+{ord(found[0]):04X} changes the order in which text is shown")
    return text


def _source_files(folder: Path) -> list[Path]:
    """List the Python files of a project, without hidden folders and virtual environments.

    Raises:
        ValueError: there are too many.
    """
    found: list[Path] = []
    for count, (place, folders, names) in enumerate(os.walk(folder)):
        own = [name for name in folders if name[0] != "." and not Path(place, name, "pyvenv.cfg").exists()]
        folders[:] = sorted(own)
        found += [Path(place, name) for name in sorted(names) if name.endswith(".py")]
        if len(found) > _MOST_FILES or count > _MOST_FOLDERS:
            raise ValueError(f"beside it are more than {_MOST_FILES} Python files or {_MOST_FOLDERS} folders: name one")
    return found


def _flat_keys(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables by keys with dots, as Flower gives them to an app."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat_keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _known_components(config: Any) -> Iterator[tuple[str, GivenNumbers]]:
    """Yield the components of a job of NVFlare that are known: a ``path`` or ``name``, and ``args``."""
    if isinstance(config, Mapping):
        name = str(config.get("path") or config.get("class_path") or config.get("name") or "").rpartition(".")[2]
        if name in TOOLS:
            given = config.get("args") or {}
            if not isinstance(given, Mapping):
                raise ValueError(f"{name}: args must be an object, got a {type(given).__name__}")
            yield name, dict(given)
    for each in config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ():
        yield from _known_components(each)


def _are_known(*values: Any) -> bool:
    """Say whether all are numbers."""
    return all(isinstance(each, int | float) for each in values)


def _plain_parameter(name: str, value: Any) -> Any:
    """Return the value of a parameter in a file, if it is of a kind that the parameter may have; else ``UNKNOWN``."""
    match value:
        case None | float():
            return UNKNOWN if value != value else value
        case int():
            return value if abs(value) <= _LARGEST else UNKNOWN
        case str():
            return value if value == PRIVATE or name in _TEXTS else UNKNOWN
        case list() if name in _LISTS:
            return [_plain_parameter("", each) for each in value]
    return UNKNOWN


def _called_name(node: ast.AST) -> str:
    """Return the last name of what is called; of ``Config.default(...)`` the class."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _called_name(node.value) if isinstance(node, ast.Attribute) and name == "default" else name


def _reports_examples(tree: ast.AST) -> bool:
    """Say whether a client reports its own number of examples, by which Flower weights: not a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("num-examples", "num_examples"):
                    return not isinstance(value, ast.Constant)
    return False


def _bound_name(node: ast.AST) -> str | None:
    """Return the name that a piece of code gives a value, in whatever way."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.MatchMapping(rest=name):
            return name
        case ast.alias(name=name, asname=other):
            return other or name
    return getattr(node, "name", None)  # of functions, classes, exceptions, patterns


def _assigned_pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names to which an assignment gives a value that is seen."""
    if isinstance(target, ast.Name) and value is not None:
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _assigned_pairs(one, part)


class _Reader:
    """Reads the numbers of a module's calls.

    Args:
        tree: of the module.
        config: of Flower's project.
    """

    def __init__(self, tree: ast.Module, config: Mapping[str, Any]) -> None:
        self._tree, self._config, self._steps = tree, config, 0
        times, assigned = Counter(map(_bound_name, ast.walk(tree))), list[tuple[str, ast.expr]]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    assigned += _assigned_pairs(target, node.value)
        self._assigned = {name: value for name, value in assigned if times[name] == 1}

    def calls(self) -> Iterator[tuple[str, GivenNumbers]]:
        """Yield the known calls, with what can be read of their arguments."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and (name := _called_name(node.func)) in TOOLS:
                expanded = any(isinstance(each, ast.Starred) for each in node.args)
                given = {} if expanded else dict(zip(TOOLS[name].parameters, node.args, strict=False))
                given |= {each.arg: each.value for each in node.keywords if each.arg}
                numbers = {key: self.value(value) for key, value in given.items()}
                if "stddev" in given:  # a deviation that is a multiple of something says of what it is one
                    parts = [part for part in ast.walk(given["stddev"]) if isinstance(part, ast.Name)]
                    said = [self.value(part) for part in parts if "multiplier" in part.id]
                    numbers |= {"noise_multiplier": said[0]} if said else {}
                if expanded or any(each.arg is None for each in node.keywords):  # f(*a) and f(**b) may give any of them
                    numbers = dict.fromkeys(TOOLS[name].parameters, UNKNOWN) | numbers
                yield name, numbers

    def value(self, node: ast.expr, depth: int = 9) -> Any:
        """Compute the value of an expression, without running it; ``UNKNOWN`` where it is not a plain number."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ValueError(f"its numbers take more than {_MOST_STEPS} steps")
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self._assigned and depth:
                return self.value(self._assigned[name], depth - 1)
            case ast.Subscript(slice=ast.Constant(value=str(key))) if key in self._config:
                return self._config[key]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._computed(neg, operand, depth=depth)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                return self._computed(_ARITHMETIC[type(operator)], left, right, depth=depth)
            case ast.Attribute(attr="inf") | ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="inf")]):
                return math.inf
            case ast.Call(func=ast.Name(id="float" | "int" as kind), args=[inner]):
                return self._computed(float if kind == "float" else math.trunc, inner, depth=depth)
            case (
                ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)])
                | ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=0))
            ) if "batch" in name.lower() or name.lower() in ("x", "y", "data", "inputs", "images", "labels"):
                return PRIVATE
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(part, depth) for part in parts]
        return UNKNOWN

    def _computed(self, operator: Callable[..., Any], *operands: ast.expr, depth: int) -> Any:
        """Compute in floating point, which ends at once; whole numbers stay whole as long as that is exact."""
        values = [self.value(each, depth) for each in operands]
        if not _are_known(*values):
            return PRIVATE if PRIVATE in values else UNKNOWN
        try:
            result = float(operator(*map(float, values)))
        except (ValueError, ArithmeticError):
            return UNKNOWN
        if operator is math.trunc or (operator is not truediv and all(isinstance(each, int) for each in values)):
            return int(result) if result.is_integer() and abs(result) <= _LARGEST else UNKNOWN
        return result


def _no_epsilon(why: str) -> Iterator[Check]:
    """Yield the verdict that a mechanism has no epsilon."""
    yield Check("epsilon", "fail", f"none: {why}")


def _not_computed(epsilon: Any, delta: Any, by: str) -> Iterator[Check]:
    """Yield the verdict that a tool has chosen its noise for a budget, which is not computed again here."""
    found = f"{epsilon} at delta {delta} is what {by} takes its noise for: not computed again here"
    yield Check("epsilon", "unknown", found if _are_known(epsilon, delta) else f"not in the file: {by}'s")


def _check_local(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check Flower's mod, which clips an update to one number and scales its noise by another.

    It is one release of one client in each round.
    """
    sensitivity, epsilon, delta = (given[name] for name in ("sensitivity", "epsilon", "delta"))
    noise: Any = UNKNOWN
    if _are_known(sensitivity, epsilon, delta):
        noise = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon and 0 < delta < 1.25 else 0.0
    claimed = given["epsilon"] if asked.said.get("rounds", 1) == 1 else None  # it is that of one round
    found = {"clip": given["clipping_norm"], "noise": noise, "sensitivity": given["sensitivity"]}
    yield from asked.claims(**found, delta=given["delta"], epsilon=claimed)


def _check_central(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check Flower's strategies, which divide noise by the number of clients.

    FedAvg weights clients by their reported numbers of examples.
    """
    weights = "clients of many examples weigh more than 1 / num_sampled_clients after clipping"
    equal = given.get("accountant") is not None  # with one, Flower refuses weights that differ
    if asked.weighted and not equal:
        yield Check("weights", "fail", f"{weights}: a client reports its own num-examples; expected: the same of all")
    elif not equal:
        yield Check("weights", "caution", f"right only if all clients report the same num-examples: else {weights}")
    clip = given.get("clipping_norm", given.get("initial_clipping_norm"))
    clients, noise = given["num_sampled_clients"], given["noise_multiplier"]
    sensitivity = clip / clients if _are_known(clip, clients) and clients else None
    yield from asked.claims(clip=clip, noise_multiplier=noise, divided_by=clients, sensitivity=sensitivity)


def _check_opacus(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check Opacus.

    The sum of clipped gradients has noise of the multiplier times the clip; then all is divided by the batch.
    """
    divisor = given.get("expected_batch_size")
    private = divisor == PRIVATE or (
        "expected_batch_size" not in given and asked.said.get("relation") == Relation.ADD_REMOVE
    )
    if given["loss_reduction"] == "mean" and private:
        what = divisor or "int(number of records times rate), which differs between neighbours under add/remove"
        yield Check("divided_by", "fail", f"{what}: the scale of the noise tells it (arXiv 2605.15648, Opacus 819)")
    if given.get("poisson_sampling") is False and ("rate" in asked.said or "target_epsilon" in given):
        yield Check("rate", "fail", "poisson_sampling=False: batches are not drawn as the accountant counts them")
    clip = given["max_grad_norm"]
    if isinstance(clip, list):  # of each layer
        clip = math.hypot(*clip) if _are_known(*clip) else UNKNOWN
    claims = asked.claims(clip=clip, noise_multiplier=given["noise_multiplier"])
    budget = "target_epsilon" in given
    yield from _not_computed(given["target_epsilon"], given["target_delta"], "Opacus") if budget else claims


def _pfl_accountant(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check pfl, which adds the noise of its accountant times ``noise_scale``: that of a larger cohort."""
    scale, noise = given["noise_scale"], given["noise_parameter"]
    if scale != 1.0:
        yield Check("noise_scale", "caution", f"{scale}: the run has so much less noise; epsilon is a larger cohort's")
    found = {"rounds": given["num_compositions"], "rate": given["sampling_probability"], "noise_multiplier": noise}
    claims = asked.claims(clip=1.0, **found, delta=given["delta"], epsilon=given["epsilon"])
    yield from _not_computed(given["epsilon"], given["delta"], "pfl") if noise is None else claims


def _jax_plan(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check a plan of jax_privacy: noise of a multiplier, or for a budget.

    With b bands it costs what DP-SGD costs for one in b of its rounds, by Poisson sampling of one in b of the people
    (Choquette-Choo et al. 2023, arXiv 2306.08153).
    """
    iterations, strategy, rate = given["iterations"], given["strategy"], given["sampling_prob"]
    bands = len(strategy) if isinstance(strategy, list) else given["num_bands"]
    known = _are_known(iterations, bands) and iterations > 0 and bands > 0
    if rate is None:
        times = given["expected_participations"]
        rate = times * bands / iterations if known and _are_known(times) else UNKNOWN
    found = {"rounds": math.ceil(iterations / bands) if known else UNKNOWN, "rate": rate, "delta": given["delta"]}
    if given["truncated_batch_size"] is not None:
        yield Check("numbers", "unknown", "truncated batches are not computed here")
    elif given["noise_multiplier"] is None:
        yield from _not_computed(given["epsilon"], given["delta"], "jax_privacy")
    else:
        yield from asked.claims(clip=1.0, noise_multiplier=given["noise_multiplier"], **found)


def _check_keras(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check jax_privacy with Keras.

    The mean of a batch has noise of multiplier times clip over the batch, which is public.
    """
    if given["poisson_sampling_in_fit"] is not True:
        yield Check("rate", "caution", "the accountant counts Poisson sampling: right only if the data are drawn so")
    if given["noise_multiplier"] is None:
        yield from _not_computed(given["epsilon"], given["delta"], "jax_privacy")
        return
    batch, size = given["batch_size"], given["train_size"]
    known = _are_known(batch, size, given["gradient_accumulation_steps"]) and size
    batch = batch * given["gradient_accumulation_steps"] if known else UNKNOWN
    found = {"rounds": given["train_steps"], "rate": batch / size if known else UNKNOWN, "divided_by": batch}
    found |= {"delta": given["delta"], "epsilon": given["epsilon"], "noise_multiplier": given["noise_multiplier"]}
    yield from asked.claims(clip=given["clipping_norm"], **found)


def _check_clipped(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check a sum of clipped gradients, divided by ``normalize_by``, to which the same file adds noise.

    The noise has a deviation (jax_privacy), or a multiplier times what a person moves (opake).
    """
    clip = given["l2_clip_norm"] if given["clipping_norm"] is None else given["clipping_norm"]
    if clip is None and asked.named(*_PLANS):
        return  # of a plan, which is checked on its own
    clip = 1.0 if given["rescale_to_unit_norm"] is True else UNKNOWN if clip is None else clip
    noises = asked.named(*_NOISES)
    if given["normalize_by"] == PRIVATE:
        yield Check("divided_by", "fail", f"{PRIVATE}: the scale of a mean tells it (arXiv 2605.15648)")
    elif len(noises) == 1 and len(asked.named(*_CLIPS)) == 1:
        found = {"noise": noises[0].get("stddev"), "noise_multiplier": noises[0].get("noise_multiplier")}
        yield from asked.claims(clip=clip, divided_by=given["normalize_by"], **found)
    else:
        yield Check("noise", "unknown", f"not one clipping and one of {' or '.join(_NOISES)} in this file")


def _check_noise(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check that noise is added to something clipped; the two are checked together."""
    if not asked.named(*_CLIPS, *_PLANS):
        yield Check("clip", "unknown", "no clipped_grad in this file says what a person moves")


def _check_claims(given: GivenNumbers, asked: FileContext) -> Iterator[Check]:
    """Check claims that are written in a file as fedamp's own."""
    yield from asked.claims(**{each.name: given[each.name] for each in fields(Claims)})


def _optimizer_parameters(*further: str) -> dict[str, Any]:
    """Return the parameters of Opacus's calls, with defaults."""
    return dict.fromkeys(("noise_multiplier", "max_grad_norm", *further), UNKNOWN) | {"loss_reduction": "mean"}


_CENTRAL = {"strategy": None, "noise_multiplier": UNKNOWN}
_FIXED = ToolCall("Flower", {**_CENTRAL, "clipping_norm": UNKNOWN, "num_sampled_clients": UNKNOWN}, _check_central)
_ADAPTIVE = ToolCall(
    "Flower", {**_CENTRAL, "num_sampled_clients": UNKNOWN, "initial_clipping_norm": 0.1}, _check_central
)
_PFL: GivenNumbers = dict.fromkeys(("num_compositions", "sampling_probability", "mechanism"), UNKNOWN)
_PFL |= {"epsilon": None, "delta": None, "noise_parameter": None, "noise_scale": 1.0}
_BUDGET = {"epsilon": None, "delta": None, "noise_multiplier": None}
_PLAN: GivenNumbers = dict.fromkeys(("num_bands", "iterations", "expected_participations", "noise_multiplier"), UNKNOWN)
_PLAN |= dict.fromkeys(("strategy", "truncated_batch_size", "sampling_prob", "epsilon", "delta"))
_CLIP = {"fun": None, "l2_clip_norm": None, "clipping_norm": None, "rescale_to_unit_norm": False, "normalize_by": 1.0}
_PLANS, _CLIPS = ("BandMFConfig", "BandMFExecutionPlanConfig"), ("clipped_grad", "clipped_fun")
_NOISES = ("gaussian_privatizer", "gaussian_noise")
_SMALL_LEFT_OUT = "small numbers are left out, and no noise is added"
_ASKED_ANEW = (
    "numbers above the threshold are not counted as they come, and all are asked anew until enough are above it"
)

TOOLS: Mapping[str, ToolCall] = {
    "LocalDpMod": ToolCall(
        "Flower", dict.fromkeys(("clipping_norm", "sensitivity", "epsilon", "delta"), UNKNOWN), _check_local
    ),
    "DifferentialPrivacyServerSideFixedClipping": _FIXED,
    "DifferentialPrivacyClientSideFixedClipping": _FIXED,
    "DifferentialPrivacyServerSideAdaptiveClipping": _ADAPTIVE,
    "DifferentialPrivacyClientSideAdaptiveClipping": _ADAPTIVE,
    "PercentilePrivacy": ToolCall("NVFlare", {}, lambda *_: _no_epsilon(_SMALL_LEFT_OUT)),
    "SVTPrivacy": ToolCall(
        "NVFlare", {}, lambda *_: _no_epsilon(f"each uploaded number costs noise_var, too; {_ASKED_ANEW}")
    ),
    "make_private": ToolCall("Opacus", _optimizer_parameters(), _check_opacus),
    "make_private_with_epsilon": ToolCall(
        "Opacus", _optimizer_parameters("target_epsilon", "target_delta"), _check_opacus
    ),
    "DPOptimizer": ToolCall(
        "Opacus", {"optimizer": None} | _optimizer_parameters("expected_batch_size"), _check_opacus
    ),
    "GaussianMechanism": ToolCall(  # noise of a relative deviation times the clip is added to the sum of all users
        "pfl",
        dict.fromkeys(("clipping_bound", "relative_noise_stddev"), UNKNOWN),
        lambda given, asked: asked.claims(
            clip=given["clipping_bound"], noise_multiplier=given["relative_noise_stddev"]
        ),
    ),
    **{f"{kind}PrivacyAccountant": ToolCall("pfl", _PFL, _pfl_accountant) for kind in ("PLD", "PRV", "RDP")},
    "BandMFConfig": ToolCall("jax_privacy", _PLAN, _jax_plan),
    "BandMFExecutionPlanConfig": ToolCall(  # its older name
        "jax_privacy", _PLAN | {"num_bands": 1, "sampling_prob": 1.0, "noise_multiplier": None}, _jax_plan
    ),
    "DPKerasConfig": ToolCall(
        "jax_privacy",
        {
            **_BUDGET,
            **dict.fromkeys(("clipping_norm", "batch_size", "train_steps", "train_size"), UNKNOWN),
            "gradient_accumulation_steps": 1,
            "poisson_sampling_in_fit": False,
        },
        _check_keras,
    ),
    **dict.fromkeys(_CLIPS, ToolCall("jax_privacy", _CLIP, _check_clipped)),  # and of opake
    "gaussian_privatizer": ToolCall("jax_privacy", {"stddev": UNKNOWN}, _check_noise),
    "gaussian_noise": ToolCall("opake", {"noise_multiplier": UNKNOWN}, _check_noise),
    "Claims": ToolCall("fedamp", {each.name: None for each in fields(Claims)}, _check_claims),
}
