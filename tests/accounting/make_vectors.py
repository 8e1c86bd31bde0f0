"""Writes the test vectors of ``fedamp/accounting/vectors``: ``python -m tests.accounting.make_vectors``.

No truth comes from the evaluators of fedamp: closed forms and integrals by mpmath at 30 digits, and enumeration in
fractions.
``ledgers.json`` has ledgers, most of them hostile, with what a verifier has to find in each.
"""

import copy
import json
import math
import random
from fractions import Fraction
from pathlib import Path

import mpmath

from fedamp.accounting import (
    Allocation,
    Approximate,
    Compose,
    FiniteOutcomes,
    Gaussian,
    Laplace,
    Poisson,
    RandomisedResponse,
    Repeat,
    Submodels,
)
from tests.accounting.oracles import gaussian_epsilon
from tests.accounting.second_accountant import chained
from tests.accounting.test_outcomes import delta_of, laws

FOLDER = Path(__file__).parents[2] / "fedamp" / "accounting" / "vectors"
FORMAT = "fedamp vectors 1"
mpmath.mp.dps = 30


def call(c, s):
    """E[(x - c)+], x = exp(z / s - 1 / (2 s^2)): delta at log c of Gaussian noise (Balle, Wang 2018, Theorem 8)."""
    if c <= 0:
        return 1 - c
    half, lost = 1 / (2 * mpmath.mpf(s)), mpmath.log(c) * s
    return mpmath.ncdf(half - lost) - c * mpmath.ncdf(-half - lost)


def put(c, s):
    """E[(c - x)+]."""
    return call(c, s) - 1 + c


def poisson(epsilon, s, q):
    """Of (1 - q) + q x, in both directions, by the same calls and puts."""
    a, q = mpmath.exp(epsilon), mpmath.mpf(q)
    removed = q * call((a - 1 + q) / q, s)
    threshold = (1 / a - 1 + q) / q
    return max(removed, a * q * put(threshold, s) if threshold > 0 else mpmath.mpf(0))


def mean_of_two(epsilon, s):
    """Of (x_1 + x_2) / 2: the mean over z_1 of a call, or a put, of x_2."""
    a, breaks = mpmath.exp(epsilon), [-12, -6, -3, 0, 3, 6, 12 + 2 / mpmath.mpf(s)]

    def over(inner):
        ratio = lambda z: mpmath.exp(z / s - 1 / (2 * mpmath.mpf(s) ** 2))  # noqa: E731
        return mpmath.quad(lambda z: mpmath.npdf(z) * inner(ratio(z)), breaks)

    removed = over(lambda x: call(2 * a - x, s) / 2)
    return max(removed, over(lambda x: a * put(2 / a - x, s) / 2 if x < 2 / a else mpmath.mpf(0)))


def laplace(epsilon, b):
    return max(mpmath.mpf(0), 1 - mpmath.exp((epsilon - 1 / mpmath.mpf(b)) / 2))


def vector(event, known_by, true, relative, **question):
    true = float(true)
    return {
        "mechanism": event.to_json(),
        **question,
        "lower": true * (1 - relative),
        "upper": true * (1 + relative),
        "known_by": known_by,
    }


def closed_forms(rng):
    """Gaussian and Laplace noise."""
    for i in range(40):
        s, times, delta = round(rng.uniform(0.5, 5), 3), rng.choice([1, 2, 10, 100]), 10.0 ** -rng.randint(3, 9)
        if i % 2:
            s, event = s * times, Repeat(Gaussian(s * times), times)
        else:
            event = Compose([Gaussian(s), Repeat(Gaussian(2 * s), times)])
        signal = times / s**2 if i % 2 else 1 / s**2 + times / (2 * s) ** 2
        true = gaussian_epsilon(delta, signal**-0.5)
        yield vector(event, "closed form (Balle, Wang 2018, Theorem 8)", true, 1e-9, delta=delta)
    for _ in range(20):
        b, epsilon = round(rng.uniform(0.5, 5), 3), round(rng.uniform(0, 0.2), 3)
        yield vector(Laplace(b), "closed form", laplace(epsilon, b), 1e-12, epsilon=epsilon)
    for _ in range(40):
        s, q, epsilon = (
            round(rng.uniform(0.5, 3), 3),
            round(10 ** rng.uniform(-3, -0.2), 4),
            round(rng.uniform(0, 2), 3),
        )
        true = poisson(epsilon, s, q)
        if true > 1e-12:
            yield vector(Poisson(Gaussian(s), q), "closed form of sampling one release", true, 1e-12, epsilon=epsilon)
    for i in range(15):
        s, epsilon = round(rng.uniform(0.7, 3), 3), round(rng.uniform(0, 1), 3)
        event = Submodels(Gaussian(s), 2) if i % 2 else Allocation(Gaussian(s), 1, 2)
        yield vector(
            event, "integral over one of two outputs, 30 digits", mean_of_two(epsilon, s), 1e-10, epsilon=epsilon
        )


def enumerations(rng):
    """Mechanisms of few outcomes, enumerated in fractions."""
    for i in range(130):
        bit = RandomisedResponse(round(rng.uniform(0.51, 0.9), 3))
        box = Approximate(round(rng.uniform(0.1, 2), 2), rng.choice([0.0, 0.001]))
        few = FiniteOutcomes((0.5, 0.25, 0.25), tuple(rng.sample([0.5, 0.25, 0.25], 3)))
        times = rng.randint(2, 5)
        event = [
            Repeat(bit, times),
            Compose([bit, few]),
            Allocation(bit, 2, times + 1),
            Allocation(Poisson(bit, 0.25), 1, times),
            Submodels(few, 3),
            Compose([Submodels(bit, 2), Repeat(few, 2)]),
            box,
        ][i % 7]
        pairs = box_of(box) if event is box else laws(event)
        epsilon = round(rng.uniform(0, 0.8), 3)
        exact = delta_of(pairs, epsilon)
        if exact > Fraction(1, 10**9):
            yield vector(event, "enumeration of all outcomes in fractions", exact, 1e-9, epsilon=epsilon)


def box_of(box):
    """The worst black box (Kairouz, Oh, Viswanath 2015, Theorem 3.4)."""
    chance, less = Fraction(box.known_delta), 1 / (1 + Fraction(math.exp(box.known_epsilon)))
    inside = [chance, (1 - chance) * (1 - less), (1 - chance) * less, Fraction(0)]
    return list(zip(inside, inside[::-1], strict=True))


def ledger(rounds=3, noise=2.0, delta=1e-5):
    """A sound ledger of Gaussian rounds, with the keys of a verifier."""
    spent = [gaussian_epsilon(delta, noise / math.sqrt(number)) * (1 + 1e-4) for number in range(1, rounds + 1)]
    return {
        "delta": delta,
        "mechanism": Repeat(Gaussian(noise), rounds).to_json(),
        "adjacency": "zero-out: the contribution of a person is replaced by zero",
        "epsilon_bound": Repeat(Gaussian(noise), rounds).epsilon(delta).method,
        "rounds_planned": rounds,
        "whole_run_epsilon": {"lower": spent[-1] * (1 - 1e-3), "upper": spent[-1]},
        "budget_epsilon": None,
        "guaranteed_epsilon": spent[-1],
        "parts": [{"name": "all", "noise_multiplier": noise}],
        "group_size": 1,
        "noise_coefficients": [],
        "noise_seed": "secret",
        "releases": [{"round": number, "epsilon_upper": upper} for number, upper in enumerate(spent, start=1)],
        "stopped_because": "finished",
        "files": {"model.safetensors": "0" * 64},
    }


def sealed(content):
    """The ledger with its chain made anew, as a forger can."""
    skipped = ("stopped_because", "files", "final_evaluation", "releases", "head", "link")
    last = chained("", {key: value for key, value in content.items() if key not in skipped})
    for release in content["releases"]:
        release.pop("link", None)
        release["link"] = last = chained(last, release)
    content["head"] = chained(last, {key: content[key] for key in skipped[:3] if key in content})
    return content


def ledgers():
    """Pairs of a ledger and what is to be found: a text, or None if it is sound."""
    sound = sealed(ledger())
    yield sound, None

    def changed(path, value, finding, chain=False):
        other = copy.deepcopy(sound)
        *keys, last = path
        inner = other
        for key in keys:
            inner = inner[key]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
        return (sealed(other) if chain else other), finding

    yield changed(["delta"], 1e-2, "chain")
    yield changed(["mechanism", "mechanism", "noise_multiplier"], 4.0, "chain")
    yield changed(["releases", 1, "epsilon_upper"], 0.1, "chain")
    yield changed(["releases", 2], None, "chain")
    yield changed(["head"], "0" * 64, "chain")
    yield changed(["files", "model.safetensors"], "1" * 64, "chain")
    yield changed(["whole_run_epsilon", "upper"], 1.0, "epsilon", chain=True)
    yield changed(["mechanism", "times"], 30, "epsilon", chain=True)
    yield changed(["mechanism", "mechanism", "noise_multiplier"], 0.5, "epsilon", chain=True)
    yield changed(["delta"], 1e-9, "epsilon", chain=True)
    yield changed(["releases", 1, "round"], 3, "rounds", chain=True)
    yield changed(["rounds_planned"], 2, "rounds", chain=True)


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = random.Random(1)
    for name, make in (("closed_forms", closed_forms), ("enumerated", enumerations)):
        vectors = list(make(rng))
        lines = ",\n".join(json.dumps(each) for each in vectors)
        (FOLDER / f"{name}.json").write_text(f'{{"format": "{FORMAT}", "vectors": [\n{lines}\n]}}\n')
        print(name, len(vectors))
    lines = ",\n".join(json.dumps({"finding": finding, "ledger": each}) for each, finding in ledgers())
    (FOLDER / "ledgers.json").write_text(f'{{"format": "{FORMAT}", "ledgers": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
