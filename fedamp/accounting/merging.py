"""Models merged: one of several released, drawn at random, or a sum of several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fedamp.accounting import checks
from fedamp.accounting.amplification import Poisson
from fedamp.accounting.mechanism import Mechanism, mechanisms_of
from fedamp.accounting.releases import Compose, Gaussian, Repeat

JOINT_RELEASE = "joint release"
FIXED_GRADIENTS = "gradients do not depend on the models"


@dataclass(frozen=True)
class RandomSelection(Mechanism):
    """One of several mechanisms, drawn with the given weights. Its release is public, and the draw may be (Yin, Zaheer,
    Li 2026, Theorems 5.1 and 5.2).

    A mechanism without privacy costs its whole weight in delta at every epsilon, and no Rényi divergence is finite.

    Args:
        mechanisms: one or more, of one neighbouring relation.
        weights: one per mechanism, >= 0, sum 1; independent of the data.
    """

    mechanisms: Annotated[Sequence[Mechanism], mechanisms_of]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", checks.weights("weights", self.weights, len(self.mechanisms)))

    @property
    def words(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        return "one of (" + ", ".join(f"{weight:g}: {part.words}" for weight, part in pairs) + ")"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part in self.used[0])

    @property
    def releases_nothing(self) -> bool:
        return all(part.releases_nothing for part in self.used[0])

    @property
    def used(self) -> tuple[tuple[Mechanism, ...], tuple[float, ...]]:
        """The mechanisms that may be drawn, and their weights."""
        drawn = [(part, weight) for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0]
        return tuple(part for part, _ in drawn), tuple(weight for _, weight in drawn)

    def unamplified(self) -> Mechanism:
        return RandomSelection(tuple(part.unamplified() for part in self.mechanisms), self.weights)


@dataclass(frozen=True)
class LinearCombination(Mechanism):
    """The released sum of weighted models, each trained privately on the same data with its own fresh randomness.

    The default charge is for the release of all models with non-zero weight (Yin, Zaheer, Li 2026, Theorem 6.1). The
    paper's cheaper charge per step (Theorems 6.2 and 6.4, Corollary 6.5) is conditional on the trajectories of all
    models, which are not released. It holds if gradients do not depend on the models (a single step, or mean
    estimation). It must be asked for by that assumption, which stays recorded in the mechanism.

    Args:
        mechanisms: one training run per model, of one neighbouring relation.
        weights: one per model, >= 0, sum 1; independent of the data.
        assumption: ``"joint release"``, or ``"gradients do not depend on the models"``. The second needs every
            run to be ``Repeat(Poisson(Gaussian(s), q), T)`` or ``Repeat(Gaussian(s), T)`` with one T.
        scales: learning rate times clipping norm of each model's steps, > 0; only for the second assumption.
    """

    mechanisms: Annotated[Sequence[Mechanism], mechanisms_of]
    weights: Sequence[float]
    assumption: str = JOINT_RELEASE
    scales: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", checks.weights("weights", self.weights, len(self.mechanisms)))
        scales = tuple(checks.positive("scales", scale) for scale in checks.sequence("scales", self.scales))
        object.__setattr__(self, "scales", scales)
        if self.assumption not in (JOINT_RELEASE, FIXED_GRADIENTS):
            expected = f'"{JOINT_RELEASE}" or "{FIXED_GRADIENTS}"'
            raise ValueError(f"assumption must be {expected}, got {self.assumption!r}")
        if self.assumption == FIXED_GRADIENTS:
            if len(self.scales) != len(self.mechanisms):
                raise ValueError(f"scales must have {len(self.mechanisms)} entries, got {len(self.scales)}")
            if len(self.mechanisms) > 12:
                raise ValueError(f"mechanisms must be at most 12 under this assumption, got {len(self.mechanisms)}")
            self.steps()

    @property
    def words(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        combined = " + ".join(f"{weight:g} x ({part.words})" for weight, part in pairs)
        return f"merged model {combined}, charged under: {self.assumption}"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part, weight in zip(self.mechanisms, self.weights, strict=True) if weight > 0)

    def unamplified(self) -> Mechanism:
        return Compose(tuple(part.unamplified() for part in self.mechanisms))

    def steps(self) -> tuple[int, list[tuple[float, float]]]:
        """The number of steps, and each model's noise multiplier and sampling rate, under the second assumption."""
        found = []
        for run in self.mechanisms:
            times, step = (run.times, run.mechanism) if isinstance(run, Repeat) else (1, run)
            rate, base = (step.rate, step.mechanism) if isinstance(step, Poisson) else (1.0, step)
            if not isinstance(base, Gaussian) or base.change != 1:
                raise ValueError(
                    f"mechanisms must be repeated (Poisson sampled) Gaussians under this assumption, got {run}"
                )
            found.append((times, (base.noise_multiplier, rate)))
        if len({times for times, _ in found}) != 1:
            raise ValueError("mechanisms must all have the same number of steps under this assumption")
        return found[0][0], [step for _, step in found]
