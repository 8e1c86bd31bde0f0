"""Our accountant for Flower's ``PrivacyAccountant`` protocol (from Flower 1.42 on)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedamp.accounting import checks
from fedamp.accounting.events import Gaussian, Mechanism, Poisson, Relation, WithoutReplacement, composed

_METHOD = "fedamp"


class Accountant:
    """For Flower's strategies with clipping at a fixed norm: ``DifferentialPrivacyServerSideFixedClipping(...,
    accountant=Accountant(config))``, where ``config`` is Flower's ``PrivacyConfig``.

    Without amplification Flower says "add or remove one". But a round always has ``sample_size`` clients, so that
    another client takes the place of one who is out: a change of two contributions. It is charged so, unless all
    clients are in every round.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self._composed: Counter[tuple[float, int, int]] = Counter()

    @property
    def num_releases(self) -> int:
        """How many releases were composed."""
        return sum(self._composed.values())

    @property
    def mechanism(self) -> Mechanism:
        """What was composed."""
        return self._mechanism(self._composed)

    def compose(self, event: Any, count: int = 1) -> None:
        """Charge ``count`` >= 1 equal releases of Flower's ``GaussianPrivacyEvent``."""
        self._composed = self._with(event, count)

    def get_epsilon(self, delta: float) -> float:
        """The upper end of epsilon at a delta in (0, 1)."""
        return self.mechanism.epsilon(delta).upper

    def get_delta(self, epsilon: float) -> float:
        """The upper end of delta at an epsilon >= 0."""
        return self.mechanism.delta(epsilon).upper

    def get_privacy_spent(self, delta: float | None = None) -> Any:
        """Flower's ``PrivacySpent``."""
        from flwr.serverapp import PrivacySpent

        delta = self.config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, _METHOD)

    def would_exceed(self, event: Any, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether ``count`` more releases would cost more than the budget; ValueError without a budget."""
        budget = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if budget is None:
            raise ValueError("max_epsilon is in neither the PrivacyConfig nor the call")
        return self._mechanism(self._with(event, count)).epsilon(self.config.target_delta).upper > budget

    def state_dict(self) -> dict[str, object]:
        """What ``load_state_dict`` reads, as JSON holds it."""
        return {"backend": _METHOD, "compositions": [[*event, count] for event, count in self._composed.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a state in place of what was composed; ValueError if another accountant has written it."""
        if state.get("backend") != _METHOD:
            raise ValueError(f"backend must be {_METHOD!r}, got {state.get('backend')!r}")
        counts = Counter({(float(z), int(n), int(of)): int(count) for z, n, of, count in state["compositions"]})
        self._mechanism(counts)  # refuses what makes no sense
        self._composed = counts

    def _with(self, event: Any, count: int) -> "Counter[tuple[float, int, int]]":
        key = event.noise_multiplier, event.sample_size, event.population_size
        counts = self._composed + Counter({key: checks.count("count", count)})
        self._mechanism(counts)
        return counts

    def _mechanism(self, counts: Mapping[tuple[float, int, int], int]) -> Mechanism:
        return composed((self._release(*event), count) for event, count in counts.items())

    def _release(self, noise: float, sample: int, population: int) -> Mechanism:
        if population != self.config.population_size:
            raise ValueError(f"population_size must be {self.config.population_size}, got {population}")
        checks.count("sample_size", sample, 1, population, "population_size")
        match self.config.sampling_method.value:
            case "poisson":
                return Poisson(Gaussian(noise, relation=Relation.ADD_REMOVE), sample / population)
            case "without-replacement":
                return WithoutReplacement(Gaussian(noise), sample, population)
            case "no-amplification":
                out = Relation.ADD_REMOVE if sample == population else Relation.SUBSTITUTION
                return Gaussian(noise, relation=out)
        raise ValueError(f"sampling_method {self.config.sampling_method.value!r} is not known")
