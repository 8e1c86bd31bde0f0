"""Define a survival model as a loss that is a sum over people, for training (``client.loss``).

The discrete-time model of Cox (1972) and Brown (1975): in each interval of a public grid, a person who is still at risk
has the event with a probability, its hazard. The likelihood of a person is a product over her own intervals. So the
loss is a sum over people, and clipping bounds each one, unlike the partial likelihood.
"""

from typing import TYPE_CHECKING

from fedamp.base.start import Later
from fedamp.data.form import CLASSES
from fedamp.federation.losses import Loss, Tally

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional
else:
    torch, functional = Later("torch"), Later("torch.nn.functional")


class DiscreteTime(Loss):
    """Minus the logarithm of a person's likelihood in discrete time; the metric is the mean likelihood.

    The label of a record is 2 * interval + event: the interval of the time, from 0, and 1 if the event happened then.
    ``data.classes`` is twice the number of intervals. The model answers two numbers for each interval; the logit of the
    hazard is the second one minus the first one. A person without the event counts as at risk in the interval, too.

    Example:
        >>> import torch
        >>> outputs = torch.zeros(2, 4)  # hazards of one half in two intervals
        >>> [round(each, 3) for each in DiscreteTime().each(outputs, torch.tensor([3, 0])).exp().tolist()]
        [4.0, 2.0]
    """

    labels = CLASSES

    def each(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Compute the loss of each record, [records]."""
        logits = outputs.reshape(len(outputs), -1, 2)
        hazards = logits[..., 1] - logits[..., 0]  # their logits, [records, intervals]
        interval = labels // 2
        at_risk = torch.arange(hazards.shape[1], device=outputs.device) <= interval[:, None]
        happened = functional.one_hot(interval, hazards.shape[1]) * (labels % 2)[:, None]
        each = functional.binary_cross_entropy_with_logits(hazards, happened.to(outputs.dtype), reduction="none")
        return torch.where(at_risk, each, 0.0).sum(1)

    def tally(self, outputs: "Tensor", labels: "Tensor") -> Tally:
        """Sum the likelihoods of records."""
        return {"likelihood": (-self.each(outputs, labels)).double().exp().sum(), "records": len(labels)}

    def metrics(self, tally: Tally) -> dict[str, float]:
        """Compute the mean likelihood of a record, in (0, 1]."""
        return {"likelihood": float(tally["likelihood"]) / tally["records"]}
