"""k hidden rounds of T: certified brackets, seconds and draws, ours beside the peers and plain Monte Carlo.

A part of ``python -m benchmarks.speed.accounting`` (alone: ``--only hidden_rounds``), a few minutes on two cores. A
peer that is not installed is left out; one that runs into the time limit counts with the limit.

Plain Monte Carlo draws from P and certifies as Dong and Özgür 2026 (arXiv 2605.07072) do, by estimate-verify-release:
a mechanism whose mean of n draws in [0, 1] is at most d is released, and the whole is then (epsilon, min over tau of
tau d + (1 - tau d) exp(-n KL(d, tau d)))-private. It has no lower end. Their O(T k) recursion is given the speed of
ours, and only the remove direction is asked of it; they verify both.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import table
from benchmarks.speed import accountants
from benchmarks.speed.limited import Contender, Stopwatch, Timed

PLAIN_DRAWS = 10_000_000  # as the paper takes; one million cannot certify a delta of 1e-5 at all


@dataclass(frozen=True)
class Setting:
    """``chosen`` of ``rounds`` hidden rounds, with Gaussian noise."""

    chosen: int
    rounds: int
    noise_multiplier: float
    delta: float


SETTINGS = (
    Setting(10, 100, 0.869, 1e-5),
    Setting(10, 100, 1.0, 1e-5),
    Setting(10, 100, 2.5, 1e-5),
    Setting(2, 10, 1.0, 1e-5),
    Setting(4, 10, 2.0, 1e-5),
    Setting(50, 100, 4.0, 1e-5),
    Setting(10, 100, 1.0, 1e-8),
)


def others() -> dict[str, Any]:
    """What else is made of hidden rounds: a name and the mechanism."""
    from fedamp.accounting import Allocation, CappedPoisson, Compose, Gaussian, Poisson, Repeat, Submodels

    run = Allocation(Gaussian(0.869), 10, 100)
    return {
        "the first 50 rounds of 10 of 100, 0.869": run.after(50),
        "five epochs of 2 of 10, 1.5": Repeat(Allocation(Gaussian(1.5), 2, 10), 5),
        "50 epochs of 2 of 10, 4": Repeat(Allocation(Gaussian(4.0), 2, 10), 50),
        "10 of 100, 0.869, and a Gaussian release at 5": Compose([run, Gaussian(5.0)]),
        "10 of 100, 0.869, one round in ten left out by the server": Allocation(Poisson(Gaussian(0.869), 0.9), 10, 100),
        "Poisson 0.1, at most 12 of 100, 0.869": CappedPoisson(Gaussian(0.869), 0.1, 12, 100),
        "10 of 100, one of 4 submodels, 0.6": Allocation(Submodels(Gaussian(0.6), 4), 10, 100),
    }


def _timed(answer: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """With the processor seconds of all threads, which tell more than a clock on a machine that others use."""

    @functools.wraps(answer)
    def timed(**question: Any) -> dict[str, Any]:
        start = time.process_time()
        found = answer(**question)
        return found | {"processor_seconds": time.process_time() - start}

    return timed


@_timed
def sampled(noise_multiplier: float, rounds: int, chosen: int, delta: float, precision: float = 5e-3) -> dict[str, Any]:
    """Ours; both directions."""
    from fedamp.accounting import Allocation, Gaussian

    event = Allocation(Gaussian(noise_multiplier), chosen, rounds)
    found = event.sampled_profile().epsilon(delta, precision=precision)
    return {"lower": found.lower, "upper": found.upper, "method": found.method}


@_timed
def split(noise_multiplier: float, rounds: int, chosen: int, delta: float) -> dict[str, Any]:
    """The k-fold split by our numerical law; its lower end is that of some attack."""
    from fedamp.accounting import Allocation, Gaussian

    found = Allocation(Gaussian(noise_multiplier), chosen, rounds).epsilon(delta, points=1200)
    return {"lower": found.lower, "upper": found.upper, "method": found.method}


@_timed
def pld_accounting(**question: Any) -> dict[str, Any]:
    lower, upper = accountants.pld_accounting_allocation(**question)
    return {"lower": 0.0, "upper": upper, "method": f"the split, whose own lower end is {lower:.4g}"}


@_timed
def random_allocation(**question: Any) -> dict[str, Any]:
    _, upper = accountants.random_allocation_allocation(**question)
    return {"lower": 0.0, "upper": upper, "method": "the least of its bounds"}


@_timed
def dp_accounting(noise_multiplier: float, rounds: int, chosen: int, delta: float) -> dict[str, Any]:
    """Another scheme: Poisson sampling with as many rounds expected. dp-accounting has no k of T."""
    upper = accountants.dp_accounting_composition(noise_multiplier, chosen / rounds, rounds, delta, 1e-3)
    return {"lower": 0.0, "upper": upper, "method": "Poisson sampling at the same rate"}


@_timed
def others_sampled(name: str, delta: float) -> dict[str, Any]:
    """Of ``others``: the bracket, and the upper end by the law or Rényi alone."""
    event = others()[name]
    found, unsampled = event.epsilon(delta), event.epsilon(delta, points=1200)
    return {"lower": found.lower, "upper": found.upper, "method": found.method, "unsampled": unsampled.upper}


@_timed
def plain(noise_multiplier: float, rounds: int, chosen: int, delta: float) -> dict[str, Any]:
    """Plain Monte Carlo of the remove direction with the certificate of estimate-verify-release."""
    from fedamp.accounting.sampling import GaussianRound, HiddenRounds

    batch = 10_000
    release = HiddenRounds(GaussianRound(noise_multiplier), (0.0,) * chosen + (1.0,), rounds)

    def losses(seed: int) -> NDArray[np.float64]:
        z = np.random.default_rng(seed).standard_normal((batch, rounds))
        z[:, :chosen] += 1 / noise_multiplier  # by symmetry the hidden rounds may come first
        found = release.log_ratios(np.exp(z / noise_multiplier - 0.5 / noise_multiplier**2))
        return found[found > 0]

    with ThreadPoolExecutor(2) as pool:
        loss = np.concatenate(list(pool.map(losses, range(PLAIN_DRAWS // batch))))
    verified = verified_delta(PLAIN_DRAWS, delta)
    if not verified:
        return {"lower": 0.0, "upper": None, "method": f"{PLAIN_DRAWS:,} draws certify no such delta"}
    low, high = 0.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        passes = -np.expm1(middle - loss[loss > middle]).sum() / PLAIN_DRAWS <= verified
        low, high = (low, middle) if passes else (middle, high)
    return {"lower": 0.0, "upper": high, "method": f"{PLAIN_DRAWS:,} draws; a mean of {verified:.1e} is released"}


def overall_delta(draws: float, verified: float) -> float:
    """What estimate-verify-release guarantees where means of ``draws`` draws up to ``verified`` are released."""
    tau = 1 + np.geomspace(1e-5, 1e6, 2000)
    tau = tau[tau * verified < 1]
    target = tau * verified
    divergence = verified * np.log(verified / target) + (1 - verified) * (np.log1p(-verified) - np.log1p(-target))
    return float(np.min(target + (1 - target) * np.exp(-draws * divergence)))


def verified_delta(draws: float, delta: float) -> float:
    """The largest mean that may be released for an overall ``delta``; 0 if none may."""
    low, high = 1e-4 * delta, delta
    if overall_delta(draws, low) > delta:
        return 0.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if overall_delta(draws, middle) <= delta else (low, middle)
    return low


def plain_draws_for(gap: float, slope: float, delta: float) -> float:
    """Draws with which estimate-verify-release is expected to end ``gap`` above the true epsilon, where log delta
    falls with ``slope``.
    """
    low, high = 1e3, 1e18
    for _ in range(40):
        middle = math.sqrt(low * high)
        verified = verified_delta(middle, delta)
        near = verified > 0 and math.log(delta / verified) <= gap * slope
        low, high = (low, middle) if near else (middle, high)
    return high


_WARM_UP = {"noise_multiplier": 1.5, "rounds": 20, "chosen": 2, "delta": 1e-3}
CONTENDERS = (
    Contender("fedamp, sampled", "fedamp", sampled, _WARM_UP),
    Contender("fedamp, k-fold split", "fedamp", split, _WARM_UP),
    Contender("PLD_accounting", "PLD_accounting", pld_accounting, _WARM_UP),
    Contender("random-allocation", "random_allocation", random_allocation, _WARM_UP),
    Contender("dp-accounting, Poisson", "dp_accounting", dp_accounting, _WARM_UP),
    Contender("plain Monte Carlo", "fedamp", plain, _WARM_UP),
)


def compare(limit: float) -> dict[str, Any]:
    """Measure and print."""
    with Stopwatch(CONTENDERS[0], limit) as watch:
        precise = watch.ask(**asdict(SETTINGS[0]), precision=1e-3)
    answers = {contender.name: _asked(contender, limit) for contender in CONTENDERS if contender.installed}
    figures = [
        asdict(setting)
        | {"answers": {name: asdict(given[i]) for name, given in answers.items()}}
        | _draws(setting, answers["fedamp, sampled"][i])
        for i, setting in enumerate(SETTINGS)
    ]
    _print(figures)
    print(f"The first setting to one part in 1000: {precise.answer or precise.problem}, {precise.seconds:.1f} s")
    warm_up = {"name": next(iter(others())), "delta": 1e-3}
    with Stopwatch(Contender("fedamp", "fedamp", others_sampled, warm_up), limit) as watch:
        more = {name: watch.ask(name=name, delta=1e-5) for name in others()}
    for name, timed in more.items():
        print(f"{name}: {timed.answer or timed.problem}")
    return {
        "first_to_1e-3": asdict(precise),
        "settings": figures,
        "others": {name: asdict(timed) for name, timed in more.items()},
    }


def _asked(contender: Contender, limit: float) -> list[Timed]:
    with Stopwatch(contender, limit) as watch:
        return [watch.ask(**asdict(setting)) for setting in SETTINGS]


def _draws(setting: Setting, ours: Timed) -> dict[str, Any]:
    """Draws that each way of sampling needs for the width of our bracket; plain ones on one side only."""
    from fedamp.accounting import Allocation, Gaussian

    if ours.answer is None:
        return {}
    event = Allocation(Gaussian(setting.noise_multiplier), setting.chosen, setting.rounds)
    pilot = event.sampled_profile().estimated_pilot(setting.delta)
    gap = (ours.answer["upper"] - ours.answer["lower"]) / 2
    return {
        "our_draws": int(ours.answer["method"].split(", ", 1)[1].split(" draws")[0].replace(",", "")),
        "plain_draws": plain_draws_for(gap, pilot.slope, setting.delta),
    }


def _print(figures: Sequence[dict[str, Any]]) -> None:
    rows = []
    for figure in figures:
        setting = {name: f"{figure[name]:g}" for name in ("chosen", "rounds", "noise_multiplier", "delta")}
        draws = {"fedamp, sampled": figure.get("our_draws"), "plain Monte Carlo": figure.get("plain_draws")}
        for name, timed in figure["answers"].items():
            answer = timed["answer"] or {"lower": 0.0, "upper": None, "processor_seconds": math.nan}
            told = {key: answer[key] for key in ("lower", "upper", "processor_seconds")}
            rows.append({**setting, "who": name, **told, "draws for our width": draws.get(name)})
    print(f"\nk of T hidden rounds, Gaussian noise: certified epsilon\n\n{table(rows)}")
