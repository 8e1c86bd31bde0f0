"""What one round releases of each part of the model, and what that costs: both from the same facts.

A round releases the noisy mean of every part of the model: of ``all`` of it, or of a ``shared`` and a ``split`` part
(Dong, Chen, Özgür 2025, section 3.2.2). docs/strategies.md says why the parts compose as they do here.
"""

from dataclasses import dataclass

from fedamp import scenario
from fedamp.accounting import Compose, Dropout, Gaussian, Mechanism, ModelMix, Submodels
from fedamp.scenario import Scenario


@dataclass(frozen=True)
class Part:
    """A part of the model that is clipped, noised and averaged by itself.

    Attributes:
        name: ``all``, or ``shared`` and ``split``.
        clip: clipping norm of a unit's update of this part.
        noise_multiplier: standard deviation of the noise over ``clip``.
        denominator: public expected number of contributors a round; what the noisy sum is divided by.
    """

    name: str
    clip: float
    noise_multiplier: float
    denominator: float

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise on every coordinate of the sum."""
        return self.clip * self.noise_multiplier


@dataclass(frozen=True)
class MixingRounds:
    """Consecutive rounds with the same mixing (ModelMix).

    Attributes:
        first: number of the first of them.
        rounds: how many they are.
        least: enforced distance of the two mixed models, in every coordinate.
        charged: the width that is paid for; the distances are whole multiples of it.
    """

    first: int
    rounds: int
    least: float
    charged: float


def parts_of(scenario_: Scenario, clip: float, noise_multiplier: float, expected_cohort: float) -> tuple[Part, ...]:
    """The parts of the model with their clipping, noise and denominators.

    Args:
        clip: norm of the whole update, or of its split part.
        noise_multiplier: of the whole update, or of its split part; 0 leaves all parts without noise.
        expected_cohort: expected number of units a round.
    """
    submodels = scenario_.submodels
    if isinstance(submodels, scenario.NoSubmodels):
        return (Part("all", clip, noise_multiplier, expected_cohort),)
    shared_clip = clip if submodels.shared_clip is None else submodels.shared_clip
    shared_noise = shared_noise_multiplier(submodels, noise_multiplier)
    return (
        Part("shared", shared_clip, shared_noise, expected_cohort),
        Part("split", clip, noise_multiplier, expected_cohort * submodels.share),
    )


def shared_noise_multiplier(
    submodels: scenario.DisjointSubmodels | scenario.DropoutSubmodels, noise_multiplier: float
) -> float:
    """Noise multiplier of the shared part, given the split part's.

    ``balanced`` minimises (s_shared / n_shared)^2 + (s_split / n_split)^2, where n are the denominators: the noise
    variance of one coordinate of each part's mean update, in units of that part's clipping norm. The budget that both
    share is 1 / s_shared^2 + 1 / (copies s_split^2), which is what a round costs where a round costs little (the mean
    of d copies of X has a d-th of the variance of X). With n_split = share * n_shared the best ratio of the two is
    (copies / share^2)^(1/4): d^(3/4) for d disjoint submodels. The cost that is charged is exact for any ratio.
    """
    wanted = submodels.shared_noise_multiplier
    if noise_multiplier == 0 or wanted == "same":
        return noise_multiplier
    if wanted == "balanced":
        return noise_multiplier * (submodels.copies / submodels.share**2) ** 0.25
    return float(wanted)


def mixing_rounds(scenario_: Scenario) -> list[MixingRounds]:
    """The schedule of ModelMix's widths; empty where nothing is mixed.

    Where a unit's rounds are drawn together (balanced and stratified check-in) all rounds must cost the same, so all
    are charged at the smallest width; so are two rounds or more that have a width each.
    """
    if scenario_.mixing is None:
        return []
    steps = scenario_.mixing.steps
    ends = [first for first, _ in steps[1:]] + [scenario_.rounds + 1]
    lengths = [end - first for (first, _), end in zip(steps, ends, strict=True)]
    drawn_together = isinstance(scenario_.check_in, scenario.BalancedCheckIn | scenario.StratifiedCheckIn)
    same = drawn_together or max(lengths) == 1
    smallest = min(width for _, width in steps)
    return [
        MixingRounds(first, rounds, width, smallest if same else width)
        for (first, width), rounds in zip(steps, lengths, strict=True)
    ]


def cost_of_round(scenario_: Scenario, parts: tuple[Part, ...], width: float | None = None) -> Mechanism:
    """The accounting expression of a unit that takes part in a round.

    Args:
        parts: all with noise.
        width: of ModelMix, in units of the model; None without mixing.
    """
    released = [_cost_of_part(scenario_, part, width) for part in parts]
    if isinstance(scenario_.privacy.clip, scenario.AdaptiveClip):
        # A unit moves the count of updates below the norm, centred at one half, by at most one half
        # (Andrew et al. 2021, section 2.2).
        released.append(Gaussian(2 * scenario_.privacy.clip.noise_multiplier))
    return released[0] if len(released) == 1 else Compose(tuple(released))


def _cost_of_part(scenario_: Scenario, part: Part, width: float | None) -> Mechanism:
    release: Mechanism = Gaussian(part.noise_multiplier)
    if width is not None and scenario_.mixing is not None:
        # One unit moves the model by at most this; only the ratio to it matters (Xiao et al. 2023, Corollary 4.1).
        step = scenario_.server.learning_rate * part.clip / part.denominator
        release = ModelMix(part.noise_multiplier, width / step, scenario_.mixing.linf_coordinates)
    if part.name != "split":
        return release
    match scenario_.submodels:
        case scenario.DisjointSubmodels(count=count):
            return Submodels(release, count)
        case scenario.DropoutSubmodels(keep=keep):
            return Dropout(release, keep)
    raise AssertionError("only a split model has a split part")
