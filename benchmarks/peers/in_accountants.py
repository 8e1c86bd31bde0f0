"""What each accountant says to a question, through its own interface. Runs in the environment of the accountant.

A line of the standard input is a question as JSON, and a line of the output the answer: ``upper``, ``lower`` where the
accountant gives one, and processor seconds of all threads, or why there is no answer. Noise is relative to the largest
contribution of one person.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

Ends = tuple[float | None, float]
"""A lower end, if there is one, and the upper end."""

FALSE_POSITIVES = 1e-3


class Unanswered(Exception):
    """The accountant has no such question; says why."""


def fedamp(kind: str, delta: float, **numbers: Any) -> Ends:
    from fedamp.accounting import Allocation, Gaussian, Laplace, Poisson, Repeat, WithoutReplacement, group, trade_off

    if kind == "hidden":
        event = Allocation(Gaussian(numbers["noise"]), numbers["chosen"], numbers["rounds"])
    elif kind == "batches":
        batch = WithoutReplacement(Gaussian(numbers["noise"]), numbers["batch"], numbers["population"])
        event = Repeat(batch, numbers["rounds"])
    elif kind == "laplace":
        event = Repeat(Laplace(numbers["scale"]), numbers["rounds"])
    elif kind == "gaussian":
        event = Repeat(Gaussian(numbers["noise"]), numbers["rounds"])
    else:
        event = Repeat(Poisson(Gaussian(numbers["noise"]), numbers["rate"]), numbers["rounds"])
    if kind == "group":
        event = group(event, numbers["people"])
    if kind == "attack":
        lower, upper = trade_off(event).true_positive_rate(FALSE_POSITIVES)
        return float(lower), float(upper)
    found = event.epsilon(delta)
    return found.lower, found.upper


def google_event(kind: str, **numbers: Any) -> Any:
    """As an event of dp_accounting."""
    import dp_accounting as dp

    if kind == "hidden":
        if not hasattr(dp, "RandomAllocationDpEvent"):
            raise Unanswered("the release has no event for it")
        return dp.RandomAllocationDpEvent(dp.GaussianDpEvent(numbers["noise"]), numbers["chosen"], numbers["rounds"])
    if kind == "batches":  # the noise is relative to a change of one person, which is two contributions
        change = dp.GaussianDpEvent(numbers["noise"] / 2)
        one = dp.SampledWithoutReplacementDpEvent(numbers["population"], numbers["batch"], change)
    elif kind == "laplace":
        one = dp.LaplaceDpEvent(numbers["scale"])
    elif kind == "gaussian":
        one = dp.GaussianDpEvent(numbers["noise"])
    elif kind == "group":
        people, rate = numbers["people"], numbers["rate"]
        chances = [math.comb(people, i) * rate**i * (1 - rate) ** (people - i) for i in range(people + 1)]
        one = dp.dp_event.MixtureOfGaussiansDpEvent(numbers["noise"], list(range(people + 1)), chances)
    else:
        one = dp.PoissonSampledDpEvent(numbers["rate"], dp.GaussianDpEvent(numbers["noise"]))
    return dp.SelfComposedDpEvent(one, numbers["rounds"])


def google(accountant: str) -> Callable[..., Ends]:
    """By privacy loss distributions, or by Rényi divergences."""

    def answer(kind: str, delta: float, **numbers: Any) -> Ends:
        import dp_accounting as dp
        from dp_accounting import pld, rdp

        event = google_event(kind, **numbers)
        relation = dp.NeighboringRelation.REPLACE_ONE if kind == "batches" else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
        found = {"pld": pld.PLDAccountant, "rdp": rdp.RdpAccountant}[accountant](neighboring_relation=relation)
        if kind == "attack" or not found.supports(event):
            raise Unanswered("it has no such question")
        return None, found.compose(event).get_epsilon(delta)

    return answer


def opacus(accountant: str) -> Callable[..., Ends]:
    """By privacy loss random variables, whose two ends are within 0.01 of the estimate, or by Rényi divergences."""

    def answer(kind: str, delta: float, **numbers: Any) -> Ends:
        from opacus.accountants import PRVAccountant, RDPAccountant

        if kind not in ("poisson", "gaussian"):
            raise Unanswered("it has no such question")
        found = {"prv": PRVAccountant, "rdp": RDPAccountant}[accountant]()
        found.history = [(numbers["noise"], numbers.get("rate", 1.0), numbers["rounds"])]
        return None, float(found.get_epsilon(delta))

    return answer


def riskcal(kind: str, delta: float, **numbers: Any) -> Ends:
    from riskcal.accountants import CTDAccountant

    if kind not in ("poisson", "gaussian", "attack"):
        raise Unanswered("it has no such question")
    found = CTDAccountant()
    found.history = [(numbers["noise"], numbers.get("rate", 1.0), numbers["rounds"])]
    if kind == "attack":
        return None, 1 - float(found.get_beta(alpha=FALSE_POSITIVES))
    return None, float(found.get_epsilon(delta=delta))


def opake(kind: str, delta: float, **numbers: Any) -> Ends:
    from opake.api.accounting import dpsgd  # the same as opake.dpsgd.accounting, without torch

    if kind in ("batches", "laplace", "group"):
        raise Unanswered("it has no such question")
    noise = dpsgd.gaussian(numbers["noise"])
    if kind == "hidden":
        event = dpsgd.k_out_of_t(noise, k=numbers["chosen"], t=numbers["rounds"], allocation="total")
    else:
        event = (noise if kind == "gaussian" else dpsgd.poisson(noise, sample_rate=numbers["rate"])) * numbers["rounds"]
    return None, float(1 - event.beta_at(FALSE_POSITIVES) if kind == "attack" else event.epsilon_at(delta))


def pld_accounting(kind: str, delta: float, **numbers: Any) -> Ends:
    from PLD_accounting import gaussian_allocation_epsilon_range

    if kind != "hidden":
        raise Unanswered("it has no such question")
    upper, _ = gaussian_allocation_epsilon_range(
        delta=delta, sigma=numbers["noise"], num_steps=numbers["rounds"], num_selected=numbers["chosen"]
    )
    return None, float(upper)  # for several hidden rounds its lower end is one of the split, not of the run


def random_allocation(kind: str, delta: float, **numbers: Any) -> Ends:
    from random_allocation.comparisons.definitions import PrivacyParams, SchemeConfig
    from random_allocation.random_allocation_scheme.combined import allocation_epsilon_combined

    if kind != "hidden":
        raise Unanswered("it has no such question")
    about = PrivacyParams(
        sigma=numbers["noise"],
        num_steps=numbers["rounds"],
        num_selected=numbers["chosen"],
        num_epochs=1,
        delta=delta,
    )
    return None, float(allocation_epsilon_combined(about, SchemeConfig(allocation_direct_alpha_orders=[*range(2, 61)])))


ANSWERS: dict[str, tuple[str, Callable[..., Ends]]] = {
    "fedamp": ("fedamp", fedamp),
    "dp-accounting, PLD": ("dp-accounting", google("pld")),
    "dp-accounting, Rényi": ("dp-accounting", google("rdp")),
    "Opacus, PRV": ("opacus", opacus("prv")),
    "Opacus, Rényi": ("opacus", opacus("rdp")),
    "riskcal": ("riskcal", riskcal),
    "opake": ("opake-accounting", opake),
    "PLD_accounting": ("PLD_accounting", pld_accounting),
    "random-allocation": ("random-allocation", random_allocation),
}
"""Every accountant: the package that it is in, and how it is asked."""


def answer(name: str, question: dict[str, Any]) -> dict[str, Any]:
    """Ask, and measure."""
    start = time.process_time()
    try:
        lower, upper = ANSWERS[name][1](**question)
    except Unanswered as reason:
        return {"problem": str(reason)}
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}", "seconds": time.process_time() - start}
    return {"lower": lower, "upper": upper, "seconds": time.process_time() - start}


def main(name: str) -> None:
    """The first line is the version; what libraries print goes to the errors."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(version(ANSWERS[name][0])), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(name, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
