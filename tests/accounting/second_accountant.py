"""A second accountant and verifier of ledgers: NumPy alone, and no code of fedamp.

``python second_accountant.py LEDGER.json`` checks a ledger's chain and its epsilon, ``python second_accountant.py
VECTORS.json ..`` itself against test vectors. docs/research/accounting.md, "Test vectors", has the format of both.

A law is two arrays: the probabilities of outcomes with the person in, p, and out, q. Many outcomes are put into cells
of the loss log(p / q): merged for lower ends, which only helps to hide, or split between edges for upper ends.
"""

import hashlib
import json
import math
import sys

import numpy as np

CELLS = 700


def binned(p, q, upper):
    """The law in cells of the loss; ``upper``: split between their edges, with p and q kept, else merged."""
    some = (p > 0) | (q > 0)
    p, q = p[some], q[some]
    if len(p) <= CELLS:
        return p, q
    with np.errstate(divide="ignore"):
        loss = np.log(p) - np.log(q)
    middle = np.isfinite(loss) & (np.maximum(p, q) > 1e-18)
    edges = np.linspace(loss[middle].min() - 1e-9, loss[middle].max() + 1e-9, CELLS)
    cell = np.searchsorted(edges, loss)
    p, q = (np.bincount(cell, masses, CELLS + 1) for masses in (p, q))
    if not upper:
        return p, q
    ratio = np.exp(edges)
    on_edges = split(p[1:-1], q[1:-1], ratio)
    at_left = min(p[0] / ratio[0], q[0])  # below all edges: p on the first, and what is left of q where p is 0
    at_right = min(q[-1] * ratio[-1], p[-1])
    on_edges[0] += at_left
    on_edges[-1] += q[-1]
    return np.append(on_edges * ratio, [0.0, p[-1] - at_right]), np.append(on_edges, [q[0] - at_left, 0.0])


def split(p, q, ratio):
    """The q of cells between neighbouring ratios p / q, on these ratios, so that p and q are kept."""
    to_right = np.clip((p - q * ratio[:-1]) / np.diff(ratio), 0, q)
    return np.append(q - to_right, 0.0) + np.append(0.0, to_right)


def product(a, b, upper):
    """Both releases, independent given whether the person is in."""
    return binned(*(np.multiply.outer(x, y).ravel() for x, y in zip(a, b, strict=True)), upper)


def mean(a, m, b, n, upper):
    """One hidden choice among m of a and n of b: the person is in the chosen one alone."""
    outer = np.multiply.outer
    p = (m * outer(a[0], b[1]) + n * outer(a[1], b[0])) / (m + n)
    return binned(p.ravel(), outer(a[1], b[1]).ravel(), upper)


def power(law, times, upper):
    found = np.ones(1), np.ones(1)
    for digit in bin(times)[2:]:
        found = product(found, found, upper)
        found = product(found, law, upper) if digit == "1" else found
    return found


def mean_of(law, count, upper):
    found, copies = law, 1
    for digit in bin(count)[3:]:
        found, copies = mean(found, copies, found, copies, upper), 2 * copies
        if digit == "1":
            found, copies = mean(found, copies, law, 1, upper), copies + 1
    return found


def gaussian(shift, upper):
    """Unit noise around ``shift``, or 0; all but 1e-20 of both is inside."""
    z = np.linspace(-9.5, 9.5 + shift, 4 * CELLS)
    cdf = [np.array([math.erfc((move - x) / math.sqrt(2)) / 2 for x in z]) for move in (shift, 0.0)]
    tail = [np.array([math.erfc((x - move) / math.sqrt(2)) / 2 for x in z]) for move in (shift, 0.0)]
    p, q = (np.where(z[1:] < m, np.diff(c), -np.diff(t)) for m, c, t in zip((shift, 0.0), cdf, tail, strict=True))
    if not upper:
        return binned(p, q, upper)
    ratio = np.exp(z * shift - shift**2 / 2)
    on_edges = split(p, q, ratio)
    return binned(np.append(on_edges * ratio, [0, 1e-20]), np.append(on_edges, [1e-20, 0]), upper)


def laplace(scale, upper):
    """Losses are between -1 / scale and 1 / scale, both with an atom."""
    x = np.linspace(0, 1 / scale, 4 * CELLS)
    inner = np.exp(-x[:-1]) * -np.expm1(-np.diff(x)) / 2
    ends = 0.5, math.exp(-1 / scale) / 2
    p, q = inner[::-1], inner
    if upper:
        ratio = np.exp(2 * x - 1 / scale)
        q = split(p, q, ratio)
        p = q * ratio
    return binned(np.r_[ends[1], p, ends[0]], np.r_[ends[0], q, ends[1]], upper)


def law_of(event, upper):
    """The law of a mechanism as ledgers write it, from above or from below; KeyError: this accountant has none."""
    kind, change = event["kind"], 2 if event.get("relation") == "substitution" else 1
    inner = law_of(event["mechanism"], upper) if isinstance(event.get("mechanism"), dict) else None
    if kind == "Gaussian":
        return gaussian(change / event["noise_multiplier"], upper)
    if kind == "Laplace":
        return laplace(event["scale"] / change, upper)
    if kind == "RandomisedResponse":
        true = event["probability"]
        return np.array([true, 1 - true]), np.array([1 - true, true])
    if kind == "FiniteOutcomes":
        return np.array(event["present"]), np.array(event["absent"])
    if kind == "Approximate":
        chance, less = event["known_delta"], 1 / (1 + math.exp(event["known_epsilon"]))
        p = np.array([chance, (1 - chance) * (1 - less), (1 - chance) * less, 0.0])
        return p, p[::-1]
    if kind == "Repeat":
        return power(inner, event["times"], upper)
    if kind == "Compose":
        found = np.ones(1), np.ones(1)
        for part in event["mechanisms"]:
            found = product(found, law_of(part, upper), upper)
        return found
    if kind == "Poisson":
        return event["rate"] * inner[0] + (1 - event["rate"]) * inner[1], inner[1]
    if kind == "Submodels":
        return mean_of(inner, event["count"], upper)
    if kind == "Allocation":
        return allocation(inner, event["k"], event["rounds"], upper)
    raise KeyError(f"{kind} has no law here")


def allocation(one, k, rounds, upper):
    """One of all rounds, or all; between, for upper ends, k groups with one hidden round in each."""
    if k in (1, rounds):
        return mean_of(one, rounds, upper) if k == 1 else power(one, k, upper)
    if not upper:
        return np.ones(1), np.ones(1)
    size, larger = divmod(rounds, k)
    groups = power(mean_of(one, size, upper), k - larger, upper)
    return product(groups, power(mean_of(one, size + 1, upper), larger, upper), upper) if larger else groups


def delta_of(law, epsilon):
    p, q = law
    scale = math.exp(min(epsilon, 700.0))
    return max(np.maximum(p - scale * q, 0).sum(), np.maximum(q - scale * p, 0).sum())


def epsilon_of(law, delta):
    low, high = 0.0, 700.0
    if delta_of(law, high) > delta:
        return math.inf
    while high - low > 1e-9 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(law, middle) > delta else (low, middle)
    return high if delta_of(law, 0.0) > delta else 0.0


def bracket(vector):
    """Both ends of the answer to a vector's question."""
    laws = law_of(vector["mechanism"], False), law_of(vector["mechanism"], True)
    if "delta" in vector:
        return tuple(epsilon_of(law, vector["delta"]) for law in laws)
    return tuple(delta_of(law, vector["epsilon"]) for law in laws)


def chained(previous, content):
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def complaints(ledger):
    """What is wrong with a ledger: its chain of digests, its rounds, or an epsilon below what the mechanism costs."""
    last_keys = ("stopped_because", "files", "final_evaluation")
    covered = {key: value for key, value in ledger.items() if key not in (*last_keys, "releases", "head", "link")}
    last = chained("", covered)
    for number, release in enumerate(ledger["releases"], start=1):
        linked = chained(last, {key: value for key, value in release.items() if key != "link"})
        if release["link"] != linked:
            yield f"round {number} is not as it was written down"
        if release["round"] != number or number > ledger["rounds_planned"]:
            yield f"round {number} is missing, or was not planned"
        last = release["link"]
    if ledger["head"] != chained(last, {key: ledger[key] for key in last_keys if key in ledger}):
        yield "the head is not as it was written down"
    try:
        lower, _ = bracket(ledger)
    except KeyError as error:
        yield f"not checked: {error.args[0]}"
        return
    claimed = ledger["whole_run_epsilon"]["upper"]
    if claimed is not None and not claimed >= lower * (1 - 1e-6):
        yield f"the whole run costs at least {lower:.4g}, not {claimed:.4g}"


def main(names):
    wrong = 0
    for name in names:
        with open(name) as file:
            content = json.load(file)
        found = list(complaints(content)) if "releases" in content else []
        for vector in content.get("vectors", []):
            lower, upper = bracket(vector)
            if lower > vector["upper"] or upper < vector["lower"]:
                found.append(f"{vector}: [{lower}, {upper}]")
        print(name, *(found or ["as it should be"]), sep="\n  ")
        wrong += len(found)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
