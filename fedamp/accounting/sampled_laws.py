"""Which mechanisms are sampled, and as what: hidden rounds, in a product with anything else."""

from functools import partial

from fedamp.accounting import laws
from fedamp.accounting.amplification import AllocationPrefix, CappedPoisson
from fedamp.accounting.composition import Compose, Repeat
from fedamp.accounting.hidden_rounds import HiddenRounds, Run
from fedamp.accounting.mechanism import Mechanism, Relation
from fedamp.accounting.participation import Participation, participation
from fedamp.accounting.ratios import FiniteRound, GaussianRound, Round
from fedamp.accounting.reductions import attained, factors, hidden_rounds_bounds
from fedamp.accounting.releases import Gaussian
from fedamp.accounting.sampled import SampledProfile


def is_sampled(event: Mechanism) -> bool:
    """Whether somebody takes part in more than one hidden round, for which law and moments are bounds only."""
    return event.is_private and any(_hidden(other) for other in factors(event)[1])


def sampled_profile(event: Mechanism, detail: laws.Detail = laws.DEFAULT_DETAIL) -> SampledProfile:
    """The sampler of an event that ``is_sampled``: its hidden rounds one by one, and all the rest as one law.

    Args:
        event: what is released.
        detail: of the law that bounds the add direction.

    Raises:
        NotEvaluable: a round, or the rest, has no numerical law.
    """
    precision, others = factors(event)
    hidden = [(found, times) for other, times in others.items() if (found := _hidden(other))]
    rest: list[Mechanism] = [Repeat(other, times) for other, times in others.items() if not _hidden(other)]
    if precision:
        rest.append(Gaussian(precision**-0.5, relation=event.relation or Relation.ZERO_OUT))
    if rest:
        hidden.append((Participation(Compose(rest), (0.0, 1.0), 1), 1))
    rounds = [_rounds(found.mechanism) for found, _ in hidden]
    upper, lower = (
        tuple(
            HiddenRounds(each, found.chances, found.rounds, times, found.rounding)
            for each, (found, times) in zip(ends, hidden, strict=True)
        )
        for ends in zip(*rounds, strict=True)
    )
    run = Run(upper)
    costlier = hidden_rounds_bounds(event)[::-1] if isinstance(event, AllocationPrefix | CappedPoisson) else [event]
    bounds = tuple(partial(laws.numerical_law, each, detail) for each in costlier)
    if all(above is below for above, below in rounds):
        return SampledProfile(run, run, bounds)
    nothing = all(isinstance(below, FiniteRound) and len(below.points) == 1 for _, below in rounds)
    return SampledProfile(run, None if nothing else Run(lower), bounds)


def _hidden(event: Mechanism) -> Participation | None:
    found = participation(event)
    return found if found is not None and len(found.chances) > 2 and not event.releases_nothing else None


def _rounds(mechanism: Mechanism) -> tuple[Round, Round]:
    """The likelihood ratio of one round, for upper and for lower ends."""
    precision, others = factors(mechanism)
    if precision and not others:
        one = GaussianRound(precision**-0.5)
        return one, one
    law = laws.numerical_law(mechanism)
    if attained(mechanism) is not mechanism:
        law = law.upper_only()
    upper = FiniteRound(law.upper, law.rounding)
    return upper, upper if law.lower is law.upper else FiniteRound(law.lower, law.rounding)
