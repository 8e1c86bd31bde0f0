"""To and from the events of Google's dp-accounting, where one exists. Needs ``dp-accounting`` (the ``interop``
extra).
"""

from typing import Any

from fedamp.accounting.basic import Gaussian, Laplace, NotPrivate, RandomisedResponse
from fedamp.accounting.composition import NOTHING, Compose, Repeat
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.replacement import WithoutReplacement
from fedamp.accounting.sampling import Poisson


def to_dp_event(mechanism: Mechanism) -> Any:
    """The ``dp_accounting.DpEvent`` of a mechanism.

    Raises:
        ValueError: dp-accounting has no event for it (allocation, submodels, ModelMix, ...).
    """
    import dp_accounting as dp

    match mechanism:
        case Gaussian(noise):
            return dp.GaussianDpEvent(noise)
        case Laplace(scale):
            return dp.LaplaceDpEvent(scale)
        case RandomisedResponse(probability):
            return dp.RandomizedResponseDpEvent(noise_parameter=2 * (1 - probability), num_buckets=2)
        case NotPrivate():
            return dp.NonPrivateDpEvent()
        case Poisson(inner, rate):
            return dp.PoissonSampledDpEvent(rate, to_dp_event(inner))
        case WithoutReplacement(inner, batch, population, 1):
            return dp.SampledWithoutReplacementDpEvent(population, batch, to_dp_event(inner))
        case Repeat(_, 0):
            return dp.NoOpDpEvent()
        case Repeat(inner, times):
            return dp.SelfComposedDpEvent(to_dp_event(inner), times)
        case Compose(parts):
            return dp.ComposedDpEvent([to_dp_event(part) for part in parts])
    raise ValueError(f"dp-accounting has no event for {type(mechanism).__name__}")


def from_dp_event(event: Any) -> Mechanism:
    """The mechanism of a ``dp_accounting.DpEvent``.

    Raises:
        ValueError: there is no mechanism for it.
    """
    import dp_accounting as dp

    match event:
        case dp.NoOpDpEvent():
            return NOTHING
        case dp.NonPrivateDpEvent():
            return NotPrivate()
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return Gaussian(noise) if noise else NotPrivate()
        case dp.LaplaceDpEvent(noise_multiplier=scale):
            return Laplace(scale) if scale else NotPrivate()
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=2):
            return RandomisedResponse(1 - noise / 2)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return Poisson(from_dp_event(inner), rate)
        case dp.SampledWithoutReplacementDpEvent(source_dataset_size=population, sample_size=batch, event=inner):
            return WithoutReplacement(from_dp_event(inner), batch, population)
        case dp.SelfComposedDpEvent(event=inner, count=times):
            return Repeat(from_dp_event(inner), times)
        case dp.ComposedDpEvent(events=parts):
            return Compose([from_dp_event(part) for part in parts]) if parts else NOTHING
    raise ValueError(f"there is no mechanism for {type(event).__name__}")
