"""Hold the words that tables, pictures and pages share, so that one fact is said in one way.

Every epsilon that comes in is an upper end, and is rounded up.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedamp.base.numbers import at_most

if TYPE_CHECKING:
    from fedamp.federation.side_sums import SideRelease
    from fedamp.runs.records import LedgerRecord

GUARANTEES = "docs/threat-model.md"
ENDINGS = {
    "finished": "finished",
    "budget": "stopped before the round that would have exceeded the budget",
    "interrupted": "interrupted; it can be resumed",
    "failed": "failed; it can be resumed",
    "diverged": "stopped because the model diverged",
}
KNOWN_SEED = "no protection from anyone who knows the seed: for research, not for release"


def known_seed(rehearsal: str) -> str:
    """Return the warning about a run with a known seed; ``rehearsal``, as a ledger holds it, is said in its place."""
    return rehearsal or KNOWN_SEED


NOT_MEASURED = "not measured: no evaluation on public test records"
_KEYS = {"check_in": "check-in", "privacy.epsilon": "budget", "privacy.clip": "clipping norm"}
_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"\\": r"\textbackslash{}", "±": r"$\pm$", "²": "$^2$"}
_LATEX |= {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "µ": r"$\mu$",
}
_METRICS = {"r2": "R²", "f1": "F1", "mean_absolute_error": "mean absolute error"}


def metric(name: str) -> str:
    """Return a metric's usual name.

    >>> metric("r2"), metric("mean_absolute_error")
    ('R²', 'mean absolute error')
    """
    return _METRICS.get(name, name.replace("_", " "))


def is_share(name: str) -> bool:
    """Say whether a metric is read in per cent."""
    return name in ("accuracy", "f1")


def is_better_low(name: str) -> bool:
    """Say whether a smaller value of a metric is better; of a metric that is not known, a larger one is."""
    return name in ("loss", "mean_absolute_error")


def value_of(name: str, value: float, digits: int = 1) -> str:
    """Write the value of a metric.

    >>> value_of("accuracy", 0.912), value_of("r2", 0.4671)
    ('91.2%', '0.467')
    """
    return f"{value:.{digits}%}" if is_share(name) else f"{value:.{digits + 2}g}"


def score(found: tuple[str, float] | None) -> str:
    """Write a metric and its value; empty for None.

    >>> score(("accuracy", 0.912)), score(("r2", 0.4671))
    ('91.2% accuracy', 'R² 0.467')
    """
    if found is None:
        return ""
    words, value = metric(found[0]), value_of(*found)
    return f"{value} {words}" if is_share(found[0]) else f"{words} {value}"


def released(found: "SideRelease | None") -> dict[str, str]:
    """Write a released side sum as rows of a table, by their headings; nothing for None."""
    return {} if found is None else found.in_words


def quality(public: tuple[str, float] | None, side: "SideRelease | None", missing: str = "not evaluated") -> str:
    """Say in short how good a model is: on public test records, otherwise as a released side sum says.

    Args:
        public: metric and value on public test records; None: not measured.
        side: the released side sum; None: there is none.
        missing: said where there is neither.
    """
    return score(public) or (side.in_short if side else "") or missing


def clipping_norm(initial: float, is_fixed: bool) -> str:
    """Describe the norm to which contributions are clipped."""
    return f"{initial:g}" + ("" if is_fixed else " in the first round, then adapted by noisy counts")


def common(scores: Iterable[tuple[str, float] | None]) -> str | None:
    """Name the metric that several models have in common; None where their tasks differ."""
    names = {found[0] for found in scores if found}
    return metric(names.pop()) if len(names) == 1 else None


def protected(unit: str, group_size: int) -> str:
    """Name the subject of a guarantee.

    >>> protected("client", 1), protected("client", 3)
    ('one client', 'any 3 clients together')
    """
    return f"one {unit}" if group_size == 1 else f"any {group_size} {unit}s together"


def for_server(epsilon: float | None) -> str:
    """Write the guarantee towards the person who runs the server; None: the server sees sums without noise."""
    return "no guarantee, because it sees each node's sum" if epsilon is None else f"epsilon <= {at_most(epsilon, 3)}"


def for_nodes(epsilon: float, unamplified: float, protection: str = "") -> str:
    """Write the guarantee towards a registered node, for units of other nodes.

    Args:
        epsilon: charged towards nodes.
        unamplified: epsilon without amplification; where the two are about equal, the text says so.
        protection: key of what hides check-ins from the node; empty: nothing is said of it.
    """
    from fedamp.federation.plan import PROTECTIONS  # the accountant comes with it

    charged = ", charged without amplification" if epsilon >= 0.999 * unamplified else ""
    return f"epsilon <= {at_most(epsilon, 3)}{charged}" + (f"; {PROTECTIONS[protection]}" if protection else "")


THIS_RUN_ALONE = "this run alone; other uses of these people's data add to this"


def for_people(ledger: "LedgerRecord") -> str:
    """Write what all uses of the people's data cost together.

    Args:
        ledger: of a run; keys of extensions in it may know other uses.

    Returns:
        Empty where no key says it.
    """
    from fedamp.accounting.verify import ledger_keys  # most tables are of no ledger

    told = ((key, getattr(ledger, name)) for name, key in ledger_keys().items())
    return "; ".join(filter(None, (key.for_people(value) for key, value in told if value is not None)))


def setting(key: str, keys: Iterable[str] = ()) -> str:
    """Write a key of a scenario in words.

    Args:
        key: with dots; its last part is used.
        keys: of other settings beside it; where another one ends alike, all of the key is used.

    >>> setting("client.learning_rate"), setting("privacy.epsilon")
    ('learning rate', 'budget')
    """
    end = key.rpartition(".")[2]
    alike = sum(other.rpartition(".")[2] == end for other in keys) > 1
    return _KEYS.get(key, (key if alike else end).replace(".", " ").replace("_", " "))


def given(value: Any) -> str:
    """Write a value of a scenario in words.

    >>> given({"scheme": "balanced", "k": 2}), given(True)
    ('balanced, k 2', 'yes')
    """
    if isinstance(value, Mapping):
        named = {key: given(each) for key, each in value.items()}
        first = [named.pop(key) for key in ("scheme", "name") if key in named]
        return ", ".join([*first, *(f"{setting(key)} {each}" for key, each in named.items())])
    if isinstance(value, list | tuple):
        return " ".join(map(given, value)) or "none"
    plain = {None: "none", True: "yes", False: "no"} if value is None or isinstance(value, bool) else {}
    return plain.get(value) or (f"{value:g}" if isinstance(value, float) else str(value))


def settings(values: Mapping[str, Any]) -> str:
    """Write several settings in words.

    >>> settings({"privacy.epsilon": 2, "client.learning_rate": 0.5})
    'budget 2, learning rate 0.5'
    """
    return ", ".join(f"{setting(key, values)} {given(value)}" for key, value in values.items()) or "as it stands"


def latex(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def markdown(text: str) -> str:
    """Escape a text for a cell of Markdown."""
    return "".join(f"\\{letter}" if letter in "\\|*_`<>[]" else letter for letter in text)
