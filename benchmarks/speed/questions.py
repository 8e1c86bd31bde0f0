"""Sixty natural questions to the accountant: both ends, the width, and the processor seconds of each.

A part of ``python -m benchmarks.speed.accounting`` (alone: ``--only questions``). Each question is asked once, of
compiled code. Seconds are those of a machine on which dp_accounting composes 10,000 Poisson sampled rounds in 0.17 s,
by what that takes in the same run: so they compare over machines, and on a busy one. A width above one per cent, or
more than two seconds, has its reason in ``WHY``.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedamp.accounting import (
    Allocation,
    Approximate,
    BallsInBins,
    Bounds,
    CappedPoisson,
    Compose,
    Cyclic,
    Dropout,
    FiniteOutcomes,
    Gaussian,
    Laplace,
    Mechanism,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Repeat,
    Spaced,
    Submodels,
    SubstitutedPoissonGaussian,
    WithoutReplacement,
    calibrate,
    epsilon_over_rounds,
    group,
    trade_off,
)

SPACED = Spaced(Gaussian(1.0), 4, 40, 4, (0.6, 0.4, 0.3))
BANDED = Spaced(Gaussian(1.6), 3, 60, 5, (0.5, 0.375, 0.3125, 0.2734))
CLASSES = Cyclic(Gaussian(1.6), 3, 60, 5)
EVALUATION = Gaussian(20.0)
REFERENCE = 0.17  # processor seconds of ``compose``, on an idle machine of 2026


class Question(NamedTuple):
    """``event``: what is released. ``delta``: what epsilon is asked for at; other questions have an ``ask``."""

    event: Mechanism
    delta: float = 1e-5
    ask: Callable[[Mechanism], Bounds] | None = None

    def answer(self) -> Bounds:
        """The bracket."""
        return self.ask(self.event) if self.ask else self.event.epsilon(self.delta)


def hidden(k: int, rounds: int, noise: float) -> Mechanism:
    """``k`` hidden rounds of ``rounds``, with Gaussian noise."""
    return Allocation(Gaussian(noise), k, rounds)


def after_15_rounds(event: Mechanism) -> Bounds:
    """The upper end by the curve over rounds, the lower end by the question alone."""
    upper = float(epsilon_over_rounds(event, 1e-5)[14])
    return Bounds(min(event.after(15).epsilon(1e-5).lower, upper), upper)


def true_positives(event: Mechanism) -> Bounds:
    """The true positive rate at a false positive rate of 1e-10."""
    lower, upper = trade_off(event).true_positive_rate(1e-10)
    return Bounds(float(lower), float(upper))


def mu(event: Mechanism) -> Bounds:
    """The least mu of a Gaussian trade-off."""
    return trade_off(event).gaussian().mu


def calibrated(build: Callable[[float], Mechanism], epsilon: float) -> Question:
    """The budget, and the lower end of what the noise found for it costs."""

    def ask(_: Mechanism) -> Bounds:
        return Bounds(build(calibrate(build, epsilon, 1e-5)).epsilon(1e-5).lower, epsilon)

    return Question(build(1.0), ask=ask)


def compose() -> float:
    """Processor seconds in which dp_accounting composes 10,000 Poisson sampled rounds, the least of three."""
    from dp_accounting.pld import privacy_loss_distribution

    seconds = []
    for _ in range(3):
        start = time.process_time()
        law = privacy_loss_distribution.from_gaussian_mechanism(
            1.2, sampling_prob=0.02, value_discretization_interval=3e-4
        )
        law.self_compose(10_000).get_epsilon_for_delta(1e-10)
        seconds.append(time.process_time() - start)
    return min(seconds)


RUN = hidden(10, 100, 0.869)
QUESTIONS = {
    "batches of 10 of 100, 100 times, noise 1": Question(Repeat(WithoutReplacement(Gaussian(1.0), 10, 100), 100)),
    "two people in 10 of 100, noise 1": Question(group(hidden(10, 100, 1.0), 2)),
    "10 of 10,000, noise 1": Question(hidden(10, 10_000, 1.0)),
    "10 of 100,000, noise 0.5, delta 1e-8": Question(hidden(10, 100_000, 0.5), 1e-8),
    "5 of 50, dropout keep 0.3, noise 1": Question(Allocation(Dropout(Gaussian(1.0), 0.3), 5, 50)),
    "Poisson 3.3e-4, noise 4, 10,000 rounds, delta 1e-30": Question(
        Repeat(Poisson(Gaussian(4.0), 3.3e-4), 10_000), 1e-30
    ),
    "4 spaced of 40, four bands, noise 1": Question(SPACED),
    "the same, after 15 rounds, by the curve": Question(SPACED, ask=after_15_rounds),
    "Gaussian 4, true positives at 1e-10": Question(Gaussian(4.0), ask=true_positives),
    "Gaussian 1e6, mu": Question(Gaussian(1e6), ask=mu),
    **{
        f"{k} of {rounds:,}, noise {noise:g}": Question(hidden(k, rounds, noise))
        for k, rounds, noise in (
            (2, 10, 0.15),
            (2, 10, 0.5),
            (2, 10, 1.0),
            (2, 10, 4.0),
            (4, 10, 1.0),
            (4, 10, 2.0),
            (5, 10, 0.5),
            (9, 10, 1.0),
            (10, 100, 0.3),
            (10, 100, 0.5),
            (10, 100, 0.869),
            (10, 100, 1.0),
            (10, 100, 2.5),
            (50, 100, 1.0),
            (50, 100, 4.0),
            (4, 1024, 0.6),
            (1, 1000, 1.0),
        )
    },
    "10 of 100, noise 1, delta 1e-8": Question(hidden(10, 100, 1.0), 1e-8),
    "10 of 100, noise 1, each round kept with 0.9": Question(Allocation(Poisson(Gaussian(1.0), 0.9), 10, 100)),
    "10 of 100, noise 1, the run kept with 0.8": Question(Poisson(hidden(10, 100, 1.0), 0.8)),
    "the first 50 rounds of 10 of 100, noise 0.869": Question(RUN.after(50)),
    "five epochs of 2 of 10, noise 1.5": Question(Repeat(hidden(2, 10, 1.5), 5)),
    "50 epochs of 2 of 10, noise 4": Question(Repeat(hidden(2, 10, 4.0), 50)),
    "10 of 100, noise 0.869, and a Gaussian at 5": Question(Compose([RUN, Gaussian(5.0)])),
    "Poisson 0.1, at most 12 of 100, noise 0.869": Question(CappedPoisson(Gaussian(0.869), 0.1, 12, 100)),
    "10 of 100, one of 4 submodels, noise 0.6": Question(Allocation(Submodels(Gaussian(0.6), 4), 10, 100)),
    "20 of 100, one of 3 submodels, noise 0.3": Question(Allocation(Submodels(Gaussian(0.3), 3), 20, 100)),
    "10 of 1,000, noise 0.8": Question(hidden(10, 1000, 0.8)),
    "Poisson 0.01, noise 1, 1,000 rounds": Question(Repeat(Poisson(Gaussian(1.0), 0.01), 1000)),
    "two people, Poisson 0.01, noise 1, 1,000 rounds": Question(group(Repeat(Poisson(Gaussian(1.0), 0.01), 1000), 2)),
    "3 spaced of 60, five bands, noise 1.6": Question(BANDED),
    "the same, and an evaluation at 20": Question(Compose([BANDED, EVALUATION])),
    "the same, two runs": Question(Repeat(BANDED, 2)),
    "3 of 60 in five classes, noise 1.6, an evaluation at 20": Question(Compose([CLASSES, EVALUATION])),
    "balls in 20 bins, 60 rounds, five bands, noise 1.6": Question(
        BallsInBins(Gaussian(1.6), 60, 20, BANDED.coefficients)
    ),
    "100 of 1,000, noise 0.8": Question(hidden(100, 1000, 0.8)),
    "1 of 1,000,000, noise 1": Question(hidden(1, 1_000_000, 1.0)),
    "1 of 50, dropout keep 0.3, noise 1": Question(Allocation(Dropout(Gaussian(1.0), 0.3), 1, 50)),
    "batches of 10 of 1,000, 100 times, noise 1": Question(Repeat(WithoutReplacement(Gaussian(1.0), 10, 1000), 100)),
    "one of 3 black boxes of 700": Question(Submodels(Approximate(700.0), 3)),
    "a black box of 700, twice": Question(Repeat(Approximate(700.0), 2)),
    "Poisson 0.5, noise 0.001, delta 0.5": Question(Poisson(Gaussian(0.001), 0.5), 0.5),
    "11 of 12 bits, true with 0.55, delta 0.1": Question(Allocation(RandomisedResponse(0.55), 11, 12), 0.1),
    "5 of 50 bits, true with 0.6, and a Gaussian at 5": Question(
        Compose([Allocation(RandomisedResponse(0.6), 5, 50), Gaussian(5.0)])
    ),
    "Laplace 10, 100 times, and three outcomes": Question(
        Compose([Repeat(Laplace(10.0), 100), FiniteOutcomes((0.5, 0.3, 0.2), (0.4, 0.3, 0.3))])
    ),
    "one of two runs, seen which": Question(RandomSelection([RUN, Gaussian(1.0)], (0.5, 0.5))),
    "substitution, Poisson 0.01, noise 1, 1,000 rounds": Question(Repeat(SubstitutedPoissonGaussian(1.0, 0.01), 1000)),
    "noise for epsilon 8, 10 of 100": calibrated(lambda noise: hidden(10, 100, noise), 8.0),
    "noise for epsilon 4, two people in 3 of 30": calibrated(lambda noise: group(hidden(3, 30, noise), 2), 4.0),
    "noise for epsilon 2, Poisson 0.01, 1,000 rounds": calibrated(
        lambda noise: Repeat(Poisson(Gaussian(noise), 0.01), 1000), 2.0
    ),
}


WHY = {  # of what is wider than one per cent, or takes more than two seconds
    "1 of 50": "as for 5 of 50",
    "batches": "the game of batches charges groups of cells of contributions by their largest profiles",
    "5 of 50, dropout": "the worst network is not known: the lower end uses the first unit kept, the upper end moments",
    "the same, after 15": "each of the curve's rounds has tables and draws of its own",
    "4 of 1,024": "few of many rounds: draws meet a loss seldom",
    "10 of 1,000": "few of many rounds: draws meet a loss seldom",
    "10 of 100, one of 4": "a round is drawn from a table",
}


def measure() -> dict[str, Any]:
    """Ends, width and processor seconds of every question, and why where they are wide or slow."""
    hidden(2, 10, 1.1).epsilon(1e-3)  # compiles
    Spaced(Gaussian(2.0), 2, 9, 3, (0.5,)).epsilon(1e-3)
    epsilon_over_rounds(Spaced(Gaussian(2.0), 2, 9, 3, (0.5,)), 1e-3)
    figures, compose_seconds = [], compose()
    for name, question in QUESTIONS.items():
        start = time.process_time()
        found = question.answer()
        seconds = (time.process_time() - start) * REFERENCE / compose_seconds
        width = found.width / found.upper if found.upper else 0.0
        why = (
            next((text for key, text in WHY.items() if name.startswith(key)), "") if width > 0.01 or seconds > 2 else ""
        )
        shown = f"[{found.lower:.5g}, {found.upper:.5g}] {100 * width:7.2f} % {seconds:6.2f} s"
        print(f"{name:52} {shown}  {why}", flush=True)
        compose_seconds = (compose_seconds + compose()) / 2  # the machine may be busier now
        figures.append({"question": name, "width": width, "seconds": seconds, "why": why} | found.to_json())
    good = sum(each["width"] <= 0.01 and each["seconds"] <= 2 for each in figures)
    print(f"{good} of {len(figures)} within one per cent and two seconds")
    return {"answers": figures}
