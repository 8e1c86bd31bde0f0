"""What files of other tools mean: Flower, NVFlare, Opacus, pfl, jax_privacy. No tool is needed, no file is executed.

A file of Python is read as a syntax tree, a job of NVFlare as JSON, a ``pyproject.toml`` with the Python files below
it. Calls are recognised by the name of the function or class (:data:`TOOLS`), their numbers where they are literals,
names that are assigned once, arithmetic of these, or keys of Flower's ``run_config``.
"""

import ast
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import add, mul, neg, pow, sub, truediv
from pathlib import Path
from typing import Any

from fedamp.accounting.events import Relation
from fedamp.accounting.verify import Check, Claims

Numbers = dict[str, Any]  # by the name of a parameter; ``PRIVATE`` and ``UNKNOWN`` stand for what is no number
PRIVATE, UNKNOWN = "the size of a private batch", "not a number in the file"
_ARITHMETIC = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.Pow: pow}
_MOST_FILES = 200


@dataclass(frozen=True)
class Tool:
    """A call of a tool: its parameters in order with defaults (``...``: none), and the checks of their values."""

    name: str
    parameters: Mapping[str, Any]
    checks: Callable[[Numbers, "Asked"], Iterator[Check]]


@dataclass(frozen=True)
class Asked:
    """What the caller adds to a file, values of :class:`Claims`; and what else is in the file."""

    said: Mapping[str, Any]
    weighted: bool = False  # clients report how many examples they have
    calls: Mapping[str, Numbers] = field(default_factory=dict)

    def claims(self, **found: Any) -> Iterator[Check]:
        """The checks of these claims; what is not known is said. One round is charged where nobody says how many."""
        known = {name: value for name, value in found.items() if value is not None} | dict(self.said)
        if missing := [name for name, value in known.items() if isinstance(value, str) and name != "relation"]:
            names = ", ".join(f"{name} is {known[name]}" for name in missing)
            options = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
            yield Check("numbers", "caution", f"{names}; expected: {options}")
            return
        if "rounds" not in known:
            yield Check("rounds", "caution", "not in the file: what follows is for one round; expected: --rounds")
        yield from Claims(**{"rounds": 1} | known).checks()


def check_file(path: Path, said: Mapping[str, Any]) -> list[Check]:
    """The checks of all calls that a file makes, by a :class:`Tool`.

    Args:
        path: a file of Python, NVFlare's JSON, or a ``pyproject.toml``.
        said: values of :class:`Claims` that take the place of those in the file.

    Raises:
        ValueError: it cannot be read, or holds no call that is known.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            found, weighted = list(_components(json.loads(text))), False
        else:
            is_project = path.suffix == ".toml"
            config = tomllib.loads(text) if is_project else {}
            files = sorted(path.parent.rglob("*.py"))[:_MOST_FILES] if is_project else [path]
            app = config.get("tool", {}).get("flwr", {}).get("app", {}).get("config", {})
            trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
            rounds = next((value for key, value in _flat(app).items() if key.endswith("num-server-rounds")), None)
            said = ({"rounds": rounds} if isinstance(rounds, int) else {}) | dict(said)
            found = [call for tree in trees for call in _Reader(tree, _flat(app)).calls()]
            weighted = any(_reports_examples(tree) for tree in trees)
    except (OSError, UnicodeDecodeError, SyntaxError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); expected: Python, JSON or a pyproject.toml") from None
    if not found:
        raise ValueError(f"{path}: no call that is known; expected one of {', '.join(TOOLS)}")
    asked = Asked(said, weighted, dict(found))
    return [
        Check(f"{name}: {each.name}", each.verdict, each.found)
        for name, given in found
        for each in TOOLS[name].checks({**TOOLS[name].parameters, **given}, asked)
    ]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables by keys with dots, as Flower gives them to an app."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _components(config: Any) -> Iterator[tuple[str, Numbers]]:
    """The components of a job of NVFlare that are known: a ``path`` or ``name``, and ``args``."""
    if isinstance(config, Mapping):
        name = str(config.get("path") or config.get("class_path") or config.get("name") or "").rpartition(".")[2]
        if name in TOOLS:
            yield name, dict(config.get("args") or {})
    for each in config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ():
        yield from _components(each)


def _called(node: ast.AST) -> str:
    """The last name of what is called; of ``Config.default(...)`` the class."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _called(node.value) if isinstance(node, ast.Attribute) and name == "default" else name


def _reports_examples(tree: ast.AST) -> bool:
    """Whether a client reports its own number of examples, by which Flower weights: not a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("num-examples", "num_examples"):
                    return not isinstance(value, ast.Constant)
    return False


def _pairs(target: ast.expr | None, value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment gives a value; one that is not known (None) is read as none."""
    if isinstance(target, ast.Name):
        yield target.id, value or ast.Name("?")
    elif isinstance(target, ast.Tuple):
        parts = value.elts if isinstance(value, ast.Tuple) else [None] * len(target.elts)
        for one, part in zip(target.elts, parts, strict=False):
            yield from _pairs(one, part)


class _Reader:
    """Reads the numbers of a module's calls."""

    def __init__(self, tree: ast.Module, config: Mapping[str, Any]) -> None:
        self._tree, self._config = tree, config
        assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.NamedExpr):
                value = getattr(node, "value", None) or ast.Constant(None)
                for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
                    for name, part in _pairs(target, value if isinstance(node, ast.Assign | ast.AnnAssign) else None):
                        assigned.setdefault(name, []).append(part)
        self._assigned = {name: values[0] for name, values in assigned.items() if len(values) == 1}

    def calls(self) -> Iterator[tuple[str, Numbers]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and (name := _called(node.func)) in TOOLS:
                given = dict(zip(TOOLS[name].parameters, node.args, strict=False))
                given |= {each.arg: each.value for each in node.keywords if each.arg}
                numbers = {key: self.value(value) for key, value in given.items()}
                if "stddev" in given:  # a deviation that is a multiple of something says of what it is one
                    parts = [part for part in ast.walk(given["stddev"]) if isinstance(part, ast.Name)]
                    said = [self.value(part) for part in parts if "multiplier" in part.id]
                    numbers |= {"noise_multiplier": said[0]} if said else {}
                yield name, numbers

    def value(self, node: ast.expr, depth: int = 9) -> Any:
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
            case ast.Call(func=ast.Name(id="float" | "int" as kind), args=[inner]):
                return self._computed({"float": float, "int": int}[kind], inner, depth=depth)
            case (
                ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)])
                | ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=0))
            ) if "batch" in name.lower() or name.lower() in ("x", "y", "data", "inputs", "images", "labels"):
                return PRIVATE
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(part, depth) for part in parts]
        return UNKNOWN

    def _computed(self, operator: Callable[..., Any], *operands: ast.expr, depth: int) -> Any:
        values = [self.value(each, depth) for each in operands]
        if PRIVATE in values:
            return PRIVATE
        try:
            return operator(*values)
        except (TypeError, ValueError, ArithmeticError):
            return UNKNOWN


def _none(why: str) -> Iterator[Check]:
    yield Check("epsilon", "fail", f"none: {why}")


def _calibrated(epsilon: Any, delta: Any, by: str) -> Iterator[Check]:
    found = f"{epsilon} at delta {delta} is what {by} takes its noise for: not computed again here"
    unknown = (
        None if isinstance(epsilon, int | float) and isinstance(delta, int | float) else f"not in the file: {by}'s"
    )
    yield Check.of("epsilon", found, caution=unknown)


def _local(given: Numbers, asked: Asked) -> Iterator[Check]:
    """Flower's mod clips an update to one number and scales its noise by another, as one release of one client."""
    numbers = [given[name] for name in ("sensitivity", "epsilon", "delta")]
    noise: Any = next((each for each in numbers if isinstance(each, str)), None)
    if noise is None:
        sensitivity, epsilon, delta = numbers
        noise = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon and 0 < delta < 1.25 else 0.0
    claimed = given["epsilon"] if asked.said.get("rounds", 1) == 1 else None  # it is that of one round
    found = {"clip": given["clipping_norm"], "noise": noise, "sensitivity": given["sensitivity"]}
    yield from asked.claims(**found, delta=given["delta"], epsilon=claimed)


def _central(given: Numbers, asked: Asked) -> Iterator[Check]:
    """Flower divides noise by the number of clients; FedAvg weights clients by their reported numbers of examples."""
    weights = "clients of many examples weigh more than 1 / num_sampled_clients after clipping"
    equal = given.get("accountant") is not None  # with one, Flower refuses weights that differ
    if asked.weighted and not equal:
        yield Check("weights", "fail", f"{weights}: a client reports its own num-examples; expected: the same of all")
    elif not equal:
        yield Check("weights", "caution", f"right only if all clients report the same num-examples: else {weights}")
    clip = given.get("clipping_norm", given.get("initial_clipping_norm"))
    clients, noise = given["num_sampled_clients"], given["noise_multiplier"]
    known = not any(isinstance(each, str) for each in (clip, clients))
    sensitivity = clip / clients if known and clients else None
    yield from asked.claims(clip=clip, noise_multiplier=noise, divided_by=clients, sensitivity=sensitivity)


def _opacus(given: Numbers, asked: Asked) -> Iterator[Check]:
    """The sum of clipped gradients has noise of the multiplier times the clip; then all is divided by the batch."""
    divisor = given.get("expected_batch_size")
    private = divisor == PRIVATE or (
        "expected_batch_size" not in given and asked.said.get("relation") == Relation.ADD_REMOVE
    )
    if given["loss_reduction"] == "mean" and private:
        what = divisor or "int(number of records times rate), which differs between neighbours under add/remove"
        yield Check("divided_by", "fail", f"{what}: the scale of the noise tells it (arXiv 2605.15648, Opacus 819)")
    sampled = given.get("poisson_sampling", True)
    if sampled is False and ("rate" in asked.said or "target_epsilon" in given):
        yield Check("rate", "fail", "poisson_sampling=False: batches are not drawn as the accountant counts them")
    clip = given["max_grad_norm"]
    if isinstance(clip, list) and not any(isinstance(each, str) for each in clip):
        clip = math.hypot(*clip)  # of each layer
    if "target_epsilon" in given:
        yield from _calibrated(given["target_epsilon"], given["target_delta"], "Opacus")
    else:
        yield from asked.claims(clip=clip, noise_multiplier=given["noise_multiplier"])


def _pfl_mechanism(given: Numbers, asked: Asked) -> Iterator[Check]:
    """Noise of a relative deviation times the clip is added to the sum of all users."""
    yield from asked.claims(clip=given["clipping_bound"], noise_multiplier=given["relative_noise_stddev"])


def _pfl_accountant(given: Numbers, asked: Asked) -> Iterator[Check]:
    """pfl adds the noise of its accountant times ``noise_scale``: that of a larger cohort than the simulated one."""
    scale, noise = given["noise_scale"], given["noise_parameter"]
    if scale != 1.0:
        yield Check("noise_scale", "caution", f"{scale}: the run has so much less noise; epsilon is a larger cohort's")
    if noise is None:
        yield from _calibrated(given["epsilon"], given["delta"], "pfl")
        return
    found = {"rounds": given["num_compositions"], "rate": given["sampling_probability"], "noise_multiplier": noise}
    yield from asked.claims(clip=1.0, **found, delta=given["delta"], epsilon=given["epsilon"])


def _jax_plan(given: Numbers, asked: Asked) -> Iterator[Check]:
    """A plan of jax_privacy: noise for its budget, or of a multiplier; one band is DP-SGD by Poisson sampling."""
    if given["noise_multiplier"] is None or given["num_bands"] != 1:
        yield from _calibrated(given["epsilon"], given["delta"], "jax_privacy")
        return
    found = {"rounds": given["iterations"], "rate": given["sampling_prob"], "delta": given["delta"]}
    yield from asked.claims(clip=1.0, noise_multiplier=given["noise_multiplier"], **found)


def _keras(given: Numbers, asked: Asked) -> Iterator[Check]:
    """The mean of a batch has noise of multiplier times clip over the batch, which is public."""
    if given["poisson_sampling_in_fit"] is not True:
        yield Check("rate", "caution", "the accountant counts Poisson sampling: right only if the data are drawn so")
    if given["noise_multiplier"] is None:
        yield from _calibrated(given["epsilon"], given["delta"], "jax_privacy")
        return
    batch, size = given["batch_size"], given["train_size"]
    known = not any(isinstance(each, str) for each in (batch, size))
    batch = batch * given["gradient_accumulation_steps"] if known else UNKNOWN
    found = {"rounds": given["train_steps"], "rate": batch / size if known else UNKNOWN, "divided_by": batch}
    found |= {"delta": given["delta"], "epsilon": given["epsilon"], "noise_multiplier": given["noise_multiplier"]}
    yield from asked.claims(clip=given["clipping_norm"], **found)


def _jax_clip(given: Numbers, asked: Asked) -> Iterator[Check]:
    """The sum of clipped gradients, divided by ``normalize_by``; ``gaussian_privatizer`` adds noise to that."""
    clip = 1.0 if given["rescale_to_unit_norm"] is True else given["l2_clip_norm"]
    if given["normalize_by"] == PRIVATE:
        yield Check("divided_by", "fail", f"{PRIVATE}: the scale of a mean tells it (arXiv 2605.15648)")
        return
    if noise := asked.calls.get("gaussian_privatizer"):
        found = {"noise": noise.get("stddev", UNKNOWN), "noise_multiplier": noise.get("noise_multiplier")}
        yield from asked.claims(clip=clip, divided_by=given["normalize_by"], **found)
    else:
        yield Check("noise", "caution", "clipping alone: no gaussian_privatizer in this file adds noise")


def _claims(given: Numbers, asked: Asked) -> Iterator[Check]:
    yield from asked.claims(**given)


def _optimizer_parameters(*further: str) -> dict[str, Any]:
    return dict.fromkeys(("noise_multiplier", "max_grad_norm", *further), UNKNOWN) | {"loss_reduction": "mean"}


_CENTRAL = {"strategy": None, "noise_multiplier": UNKNOWN}
_FIXED = Tool("Flower", {**_CENTRAL, "clipping_norm": UNKNOWN, "num_sampled_clients": UNKNOWN}, _central)
_ADAPTIVE = Tool("Flower", {**_CENTRAL, "num_sampled_clients": UNKNOWN, "initial_clipping_norm": 0.1}, _central)
_PFL: Numbers = dict.fromkeys(("num_compositions", "sampling_probability", "mechanism"), UNKNOWN)
_PFL |= {"epsilon": None, "delta": None, "noise_parameter": None, "noise_scale": 1.0}
_BUDGET = {"epsilon": None, "delta": None, "noise_multiplier": None}
_CLIP = {"fun": None, "l2_clip_norm": 1.0, "rescale_to_unit_norm": False, "normalize_by": 1.0}
_WHAT_SVT_DOES = (
    "each of the uploaded numbers costs noise_var beside epsilon, numbers above the threshold are not counted as they "
    "come, and all are asked anew until enough are above it"
)

TOOLS: Mapping[str, Tool] = {
    "LocalDpMod": Tool("Flower", dict.fromkeys(("clipping_norm", "sensitivity", "epsilon", "delta"), UNKNOWN), _local),
    "DifferentialPrivacyServerSideFixedClipping": _FIXED,
    "DifferentialPrivacyClientSideFixedClipping": _FIXED,
    "DifferentialPrivacyServerSideAdaptiveClipping": _ADAPTIVE,
    "DifferentialPrivacyClientSideAdaptiveClipping": _ADAPTIVE,
    "PercentilePrivacy": Tool("NVFlare", {}, lambda *_: _none("small numbers are left out, and no noise is added")),
    "SVTPrivacy": Tool("NVFlare", {}, lambda *_: _none(_WHAT_SVT_DOES)),
    "make_private": Tool("Opacus", _optimizer_parameters(), _opacus),
    "make_private_with_epsilon": Tool("Opacus", _optimizer_parameters("target_epsilon", "target_delta"), _opacus),
    "DPOptimizer": Tool("Opacus", {"optimizer": None} | _optimizer_parameters("expected_batch_size"), _opacus),
    "GaussianMechanism": Tool(
        "pfl", dict.fromkeys(("clipping_bound", "relative_noise_stddev"), UNKNOWN), _pfl_mechanism
    ),
    **{f"{kind}PrivacyAccountant": Tool("pfl", _PFL, _pfl_accountant) for kind in ("PLD", "PRV", "RDP")},
    "BandMFExecutionPlanConfig": Tool(
        "jax_privacy", {"iterations": UNKNOWN, "num_bands": 1, "sampling_prob": 1.0, **_BUDGET}, _jax_plan
    ),
    "DPKerasConfig": Tool(
        "jax_privacy",
        {
            **_BUDGET,
            **dict.fromkeys(("clipping_norm", "batch_size", "train_steps", "train_size"), UNKNOWN),
            "gradient_accumulation_steps": 1,
            "poisson_sampling_in_fit": False,
        },
        _keras,
    ),
    **dict.fromkeys(("clipped_grad", "clipped_fun"), Tool("jax_privacy", _CLIP, _jax_clip)),
    "gaussian_privatizer": Tool("jax_privacy", {"stddev": UNKNOWN}, lambda *_: iter(())),  # with what it is added to
    "Claims": Tool("fedamp", {each.name: None for each in fields(Claims)}, _claims),
}
