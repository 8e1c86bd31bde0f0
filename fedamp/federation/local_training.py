"""Define the scenario's ``client`` section: local training.

How it is computed is in :mod:`fedamp.client.training`. A plan reads :attr:`LocalTraining.largest_drift` for ``clip:
auto``. The section is part of what clients are told (:class:`fedamp.client.task.ClientTask`).
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedamp.base.section import Count, NotNegative, Positive, Section, Steps, at, check_steps, removed
from fedamp.extension import keys
from fedamp.federation.added_keys import extend

DEPLOYED_RECORDS = 10_000  # of a client on a deployment's node; nobody else's records or clock follow from more


@partial(extend, path="client")
class LocalTraining(Section):
    """Local training: ``steps`` gradient steps, or ``epochs`` passes over the client's records.

    An update is clipped whatever training made of it, so the guarantee does not rest on these keys.
    """

    loss: str = Field(
        "cross-entropy",
        description="cross-entropy, mean-squared-error, binary-cross-entropy, token-cross-entropy, or "
        "package.module:name (see docs/models.md)",
    )
    steps: Count | None = Field(None, description="gradient steps of a client in a round")
    epochs: Count | None = Field(None, description="passes over the client's records in a round, instead of steps")
    batch_size: Count | Literal["full"] = Field("full", description="records of a gradient step; full: all")
    max_records: Count | None = Field(
        None,
        exclude_if=lambda count: count is None,
        description="of a client with more records only the first so many train, so that the time of a node follows "
        f"from public numbers; default: {DEPLOYED_RECORDS:,} in a deployment, any number in a simulation",
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="its state starts anew in every round of a client")
    learning_rate: Positive | Annotated[Steps, Field(min_length=1)] = Field(
        0.1, description="a number, or a list of [first round, number], the first of them for round 1"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="of sgd, over the steps of a round")
    weight_decay: NotNegative = Field(0.0, description="weight of half the squared parameters in the loss")
    beta1: Annotated[float, *removed(0.9, "0.9, as adam has it")] = 0.9
    beta2: Annotated[float, *removed(0.999, "0.999, as adam has it")] = 0.999
    epsilon: Annotated[float, *removed(1e-8, "1e-8, as adam has it")] = 1e-8
    precision: Literal["float32", "tf32", "bfloat16"] = Field("float32", description="of local training on a GPU")
    proximal: NotNegative = Field(
        0.0, description="weight of the FedProx term (Li et al. 2020) that pulls towards the global model"
    )

    @model_validator(mode="after")
    def _goes_together(self) -> "LocalTraining":
        """Refuse keys that contradict each other, and a schedule that does not begin at round 1."""
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError("momentum is for optimizer sgd")
        check_steps("learning_rate", self.learning_rates)
        return self

    @property
    def learning_rates(self) -> Steps:
        """Learning rates as pairs (first round, learning rate), also where one number holds for all rounds."""
        return self.learning_rate if isinstance(self.learning_rate, tuple) else ((1, self.learning_rate),)

    def learning_rate_in(self, round_: int) -> float:
        """Return the learning rate of a round, from 1."""
        return at(self.learning_rates, round_)

    @property
    def is_extended(self) -> bool:
        """Say whether it has a key of an extension, which may change any step."""
        return any(getattr(self, key.removeprefix("client.")) for key in keys("sections") if key.startswith("client."))

    @property
    def moves_all(self) -> bool:
        """Say whether a step may move parameters of which no record has a gradient."""
        return self.weight_decay > 0 or self.is_extended

    @property
    def largest_drift(self) -> float:
        """Distance by which gradients of norm 1 move a client in a round. An epoch counts as one step; adam gives 1."""
        if self.optimizer == "adam":
            return 1.0
        return max(rate for _, rate in self.learning_rates) * (self.steps or self.epochs or 1) / (1 - self.momentum)
