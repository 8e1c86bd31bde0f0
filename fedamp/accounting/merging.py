"""Merging of privately trained models by linear combination. Random selection is ``RandomSelection``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedamp.accounting import checks
from fedamp.accounting.basic import Gaussian
from fedamp.accounting.composition import NOTHING, Compose, Repeat, mechanisms_of
from fedamp.accounting.mechanism import Mechanism
from fedamp.accounting.mixtures import GaussianMixture, subsets
from fedamp.accounting.sampling import Derived, Poisson

JOINT_RELEASE = "joint release"
FIXED_GRADIENTS = "gradients do not depend on the models"


@dataclass(frozen=True)
class LinearCombination(Derived):
    """The released sum of weighted models, each trained privately on the same data with its own fresh randomness.

    By default it is charged as if all the models with non-zero weight were released (Theorem 6.1 of the paper on
    merging private models; tight without further structure).

    The paper's cheaper charge per step (Theorems 6.2 and 6.4, Corollary 6.5, Algorithms 3 and 4) is conditional on the
    trajectories of all models, which are not released: a model's later gradients may write what it learned earlier into
    the merged model. It is right where gradients do not depend on the models (a single step, or mean estimation), so
    it must be asked for by that assumption, which stays recorded in the mechanism.

    Args:
        mechanisms: one training run per model.
        weights: one per model, >= 0, sum 1; independent of the data.
        assumption: ``"joint release"``, or ``"gradients do not depend on the models"``. The latter needs every
            run to be ``Repeat(Poisson(Gaussian(s), q), T)`` or ``Repeat(Gaussian(s), T)`` with one T.
        scales: learning rate times clipping norm of each model's steps, > 0; only for the second assumption.
    """

    mechanisms: Sequence[Mechanism]
    weights: Sequence[float]
    assumption: str = JOINT_RELEASE
    scales: Sequence[float] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", mechanisms_of("mechanisms", self.mechanisms))
        object.__setattr__(self, "weights", checks.weights("weights", self.weights, len(self.mechanisms)))
        object.__setattr__(self, "scales", tuple(checks.positive("scales", scale) for scale in self.scales))
        if self.assumption not in (JOINT_RELEASE, FIXED_GRADIENTS):
            accepted = f'"{JOINT_RELEASE}" or "{FIXED_GRADIENTS}"'
            raise ValueError(f"assumption must be {accepted}, got {self.assumption!r}")
        if self.assumption == FIXED_GRADIENTS:
            if len(self.scales) != len(self.mechanisms):
                raise ValueError(f"scales must have {len(self.mechanisms)} entries, got {len(self.scales)}")
            if len(self.mechanisms) > 12:
                raise ValueError(f"mechanisms must be at most 12 under this assumption, got {len(self.mechanisms)}")
            self._steps()

    def __str__(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        combined = " + ".join(f"{weight:g} x ({part})" for weight, part in pairs)
        return f"merged model {combined}, charged under: {self.assumption}"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0)

    def unamplified(self) -> Mechanism:
        return Compose(tuple(part.unamplified() for part in self.mechanisms))

    def _steps(self) -> tuple[int, list[tuple[float, float]]]:
        """The number of steps, and each model's noise multiplier and sampling rate."""
        found = []
        for run in self.mechanisms:
            times, step = (run.times, run.mechanism) if isinstance(run, Repeat) else (1, run)
            rate, base = (step.rate, step.mechanism) if isinstance(step, Poisson) else (1.0, step)
            if not isinstance(base, Gaussian):
                raise ValueError(
                    f"mechanisms must be repeated (Poisson sampled) Gaussians under this assumption, got {run}"
                )
            found.append((times, (base.noise_multiplier, rate)))
        if len({times for times, _ in found}) != 1:
            raise ValueError("mechanisms must all have the same number of steps under this assumption")
        return found[0][0], [step for _, step in found]

    def _expansion(self) -> Mechanism:
        if self.assumption == JOINT_RELEASE:
            used = tuple(part for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0)
            return Compose(used or (NOTHING,))
        times, steps = self._steps()
        sizes = [weight * scale for weight, scale in zip(self.weights, self.scales, strict=True)]
        noise = math.hypot(*(size * multiplier for size, (multiplier, _) in zip(sizes, steps, strict=True)))
        shifts, chances = subsets([size / noise for size in sizes], [rate for _, rate in steps])
        return Repeat(GaussianMixture(shifts, chances), times)

    def _attack(self) -> Mechanism | None:
        """The merged model may hide its parts; no attack is claimed under the joint release."""
        return None if self.assumption == JOINT_RELEASE and len(self.mechanisms) > 1 else self
