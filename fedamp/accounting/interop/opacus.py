"""Our accountant for Opacus: ``PrivacyEngine(accountant="fedamp")`` after this module is imported."""

from opacus.accountants import IAccountant, register_accountant

from fedamp.accounting.events import Gaussian, Mechanism, NotPrivate, Poisson, Relation, composed


class Accountant(IAccountant):  # type: ignore[misc]
    """Poisson samples with Gaussian noise, charged for records that are added or removed. ``history``: triples (noise
    multiplier, sampling rate, steps), as all of Opacus's accountants keep it.
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    @property
    def event(self) -> Mechanism:
        """What was composed."""
        return composed((_release(*each), steps) for *each, steps in self.history)

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Charge one step; ValueError if the noise multiplier or the rate makes no sense."""
        _release(noise_multiplier, sample_rate)
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def get_epsilon(self, delta: float, **_: object) -> float:
        """The upper end of epsilon at a delta in (0, 1)."""
        return self.event.epsilon(delta).upper

    def __len__(self) -> int:
        return sum(steps for *_, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name to ask for."""
        return "fedamp"


def _release(noise_multiplier: float, sample_rate: float) -> Mechanism:
    if not noise_multiplier:
        return NotPrivate()
    return Poisson(Gaussian(noise_multiplier, relation=Relation.ADD_REMOVE), sample_rate)


register_accountant(Accountant.mechanism(), Accountant, force=True)
