"""Losses: define what local training minimises, and the metrics of a model (``client.loss``).

The loss does not change the privacy guarantee, because each client's update is clipped. A loss must treat each record
separately; a custom loss is called with one client's records at a time.

A further loss is one class here and its name in ``LOSSES``. Nothing here imports torch before a loss is computed, so
that a scenario is checked at once. Clients compute losses and their gradients (:mod:`fedamp.client.training`); the
server adds tallies of the public test set (:mod:`fedamp.server.evaluate`). The last functions read a scenario's
records for its loss.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedamp import rng
from fedamp.base import given
from fedamp.base.devices import any_order
from fedamp.base.start import Later
from fedamp.data.dataset import DataSection, Dataset
from fedamp.data.form import BINARY, CLASSES, NOT_COUNTED, NUMBERS, TOKENS, Form, Labels
from fedamp.errors import DataError, FederationError, InputError, ModelError, one_line
from fedamp.federation.local_training import LocalTraining
from fedamp.models.custom import import_own, is_import_path, is_there
from fedamp.models.model import Model, library_of
from fedamp.models.units import unknown

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional

    from fedamp.federation.scenario import Scenario
else:
    torch, functional = Later("torch"), Later("torch.nn.functional")

Tally = dict[str, Any]
"""Sums over records by name, as tensors or integers."""


class Loss(ABC):
    """Base of losses: the kind of labels that a loss takes, the loss of each record, and the metrics of its task.

    A loss of one's own is a subclass at an import path, ``client.loss: package.module:Name`` (docs/models.md). It is
    checked on the first model's outputs before the run (:meth:`check_outputs`).

    Attributes:
        name: its name in ``client.loss``; for a custom loss its import path.
        labels: the kind of labels.
        output_axes: number of axes of a model's output, with the one of records.
    """

    name: ClassVar[str] = ""
    labels: ClassVar[Labels]
    output_axes: ClassVar[int] = 2

    @abstractmethod
    def each(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Compute the loss of each record, which depends on that record alone.

        Args:
            outputs: of the model, [records, outputs]; [records, length, outputs] for tokens.
            labels: [records, ...], as :attr:`labels` reads them.

        Returns:
            Tensor of shape [records].
        """

    @abstractmethod
    def tally(self, outputs: "Tensor", labels: "Tensor") -> Tally:
        """Compute the sums over some records that :meth:`metrics` needs; those of a test set are added by name.

        Args:
            outputs, labels: as for :meth:`each`.
        """

    @abstractmethod
    def metrics(self, tally: Tally) -> dict[str, float]:
        """Compute the metrics of a model by name from the added tallies.

        The first one leads: it is at most 1, and more is better.
        """

    @property
    def is_known(self) -> bool:
        """Say whether the loss is built in. Built-in losses treat each record separately."""
        return type(self) in LOSSES.values()

    def of_clients(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Compute the loss of each record of each client; one client's losses depend on no other's.

        Args:
            outputs: [clients, records, ...].
            labels: [clients, records, ...].

        Returns:
            Tensor of shape [clients, records].
        """
        if self.is_known:
            return self.each(outputs.flatten(0, 1), labels.flatten(0, 1)).view(outputs.shape[:2])
        if len(outputs) == 1:
            return self.each(outputs[0].clone(), labels[0].clone())[None]
        return torch.func.vmap(self.each)(outputs.clone(), labels.clone())

    def gradients(self, outputs: "Tensor", labels: "Tensor", weights: "Tensor") -> "Tensor":
        """Compute the gradient of the weighted sum of losses with respect to the outputs.

        Args:
            outputs: [clients, records, ...].
            labels: [clients, records, ...].
            weights: [clients, records]; zero where a record is padding.

        Returns:
            Tensor of the shape of ``outputs``.
        """
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            losses = torch.where(weights > 0, self.of_clients(leaf, labels), 0.0)
            (gradients,) = torch.autograd.grad((losses * weights).sum(), leaf)
        return gradients

    def exact_outputs(self, outputs: "Tensor") -> "Tensor":
        """Convert outputs to the type in which they are evaluated: float64, or float32 for a custom loss.

        A custom loss may hold tensors of its own, which would not fit float64.
        """
        return outputs.double() if self.is_known else outputs.float()

    def loss_sums(self, outputs: "Tensor", labels: "Tensor", weights: "Tensor") -> "Tensor":
        """Sum the losses of each client's real records: float64 of shape [clients].

        Args:
            outputs, labels, weights: as for :meth:`gradients`.
        """
        return torch.where(weights > 0, self.of_clients(outputs, labels), 0.0).double().sum(1)

    def check_outputs(self, outputs: "Tensor", labels: "Tensor", model: str) -> None:
        """Check that the loss takes a model's outputs, and that a custom loss treats each record by itself.

        Args:
            outputs: of a few records, [records, ...].
            labels: of these records.
            model: the model's name, for the error.

        Raises:
            ModelError: the outputs have another shape; or the loss fails, changes its arguments, does not give one
                number for each record, or mixes the records of a batch.
        """
        shape = list(outputs.shape)
        if len(shape) != self.output_axes:
            wanted = "[batch, length, outputs]" if self.output_axes == 3 else "[batch, outputs]"
            raise ModelError(f"client.loss: {self.name} takes outputs {wanted}; model {model} answers {shape}")
        if self.is_known:
            return
        given_ = outputs.clone(), labels.clone()
        try:
            found = list(self.each(*given_).shape)
            self.tally(*given_)
        except Exception as error:  # a custom loss may raise anything
            what = f"outputs {shape} and labels {list(labels.shape)}"
            raise ModelError(f"client.loss: {self.name} fails for {what} ({one_line(error)})") from error
        for what, before, after in zip(("outputs", "labels"), (outputs, labels), given_, strict=True):
            if not bool(((before == after) | (before != before)).all()):
                raise ModelError(f"client.loss: {self.name} changes its {what} in place; expected: a copy")
        if found != shape[:1]:
            expected = f"expected: one loss for each record, {shape[:1]}, as with reduction='none'"
            raise ModelError(f"client.loss: {self.name} answers {found} for {shape[0]} records; {expected}")
        from fedamp.models.inspection import mixes

        drawn = torch.randn(4, *shape[1:], generator=torch.Generator().manual_seed(0))
        if mixes(lambda some: self.each(some.clone(), labels[[0] * len(some)]), drawn):
            found_ = "mixes the records of a batch: the loss of one changes with the others"
            raise ModelError(f"client.loss: {self.name} {found_}; expected: that of each record by itself")


class CrossEntropy(Loss):
    """Cross-entropy of one class a record; accuracy is the share of records whose likeliest class is theirs."""

    name = "cross-entropy"
    labels = CLASSES

    def each(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        return functional.cross_entropy(outputs, labels, reduction="none")

    def tally(self, outputs: "Tensor", labels: "Tensor") -> Tally:
        right = outputs.argmax(1) == labels
        return {"right": right.sum(), "records": len(right)}

    def metrics(self, tally: Tally) -> dict[str, float]:
        return {"accuracy": int(tally["right"]) / tally["records"]}

    def gradients(self, outputs: "Tensor", labels: "Tensor", weights: "Tensor") -> "Tensor":
        if not self.is_known:
            return super().gradients(outputs, labels, weights)
        # (softmax - one hot) * weight. Classes first: a softmax over a short last axis is several times slower.
        by_class = outputs.flatten(0, 1).t().contiguous()
        gradients = torch.softmax(by_class, 0)
        with any_order():  # each place gets one number
            gradients.scatter_add_(0, labels.view(1, -1), gradients.new_full((1, 1), -1.0).expand(1, labels.numel()))
        gradients.mul_(weights.reshape(1, -1))
        return gradients.t().reshape(outputs.shape)

    def of_clients(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        if not self.is_known:
            return super().of_clients(outputs, labels)
        log_probabilities = torch.log_softmax(outputs.flatten(0, 1).t().contiguous(), 0)
        return -log_probabilities.gather(0, labels.view(1, -1)).view(labels.shape)


class MeanSquaredError(Loss):
    """Mean squared difference to the numbers of a record; the metrics are R2 (on average over them) and mean error."""

    name = "mean-squared-error"
    labels = NUMBERS

    def each(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        return (outputs - labels).square().mean(1)

    def tally(self, outputs: "Tensor", labels: "Tensor") -> Tally:
        wanted, errors = labels.double(), outputs.double() - labels
        return {
            "records": len(wanted),
            "sum": wanted.sum(0),
            "squares": wanted.square().sum(0),
            "errors": errors.abs().sum(0),
            "squared_errors": errors.square().sum(0),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        spread = tally["squares"] - tally["sum"].square() / tally["records"]
        errors = tally["squared_errors"]
        # Equal labels have no variance to explain: 1 if predicted exactly, else 0, as in scikit-learn.
        explained = (1 - errors / spread).where(spread > 1e-12 * tally["squares"], (errors == 0).double())
        return {"r2": float(explained.mean()), "mean_absolute_error": float(tally["errors"].mean() / tally["records"])}


class BinaryCrossEntropy(Loss):
    """Mean of the cross-entropy over the binary labels of a record; outputs are logits.

    Accuracy is the share of correct labels; f1 is the mean of their F1 scores (0 for a label that is never present or
    predicted).
    """

    name = "binary-cross-entropy"
    labels = BINARY

    def each(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        return functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype), reduction="none").mean(1)

    def tally(self, outputs: "Tensor", labels: "Tensor") -> Tally:
        found, there = outputs > 0, labels > 0.5
        return {
            "right": (found == there).sum(),
            "labels": found.numel(),
            "found": (found & there).sum(0),
            "wrong": (found ^ there).sum(0),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        found = 2 * tally["found"].double()
        f1 = found / (found + tally["wrong"]).clamp(min=1)
        return {"accuracy": int(tally["right"]) / tally["labels"], "f1": float(f1.mean())}


class TokenCrossEntropy(Loss):
    """Mean over the places of a sequence of the cross-entropy there; places labelled -100 do not count.

    Accuracy and perplexity are over all places that count.
    """

    name = "token-cross-entropy"
    labels = TOKENS
    output_axes = 3

    def each(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        return self._place_losses(outputs, labels).sum(1) / (labels != NOT_COUNTED).sum(1).clamp(min=1)

    def tally(self, outputs: "Tensor", labels: "Tensor") -> Tally:
        counted = labels != NOT_COUNTED
        return {
            "right": ((outputs.argmax(2) == labels) & counted).sum(),
            "places": counted.sum(),
            "losses": self._place_losses(outputs.double(), labels).sum(),
        }

    def metrics(self, tally: Tally) -> dict[str, float]:
        places = max(int(tally["places"]), 1)
        perplexity = math.exp(min(float(tally["losses"]) / places, 700.0))
        return {"accuracy": int(tally["right"]) / places, "perplexity": perplexity}

    def _place_losses(self, outputs: "Tensor", labels: "Tensor") -> "Tensor":
        """Compute the cross-entropy at each place, shape [records, length]; 0 where a place does not count."""
        flat = functional.cross_entropy(
            outputs.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=NOT_COUNTED
        )
        return flat.view(labels.shape)


LOSSES: dict[str, type[Loss]] = {
    each.name: each for each in (CrossEntropy, MeanSquaredError, BinaryCrossEntropy, TokenCrossEntropy)
}


@dataclass(frozen=True)
class Functions:
    """Functions that a person gives in place of those of a built-in loss; all take outputs and labels.

    Attributes:
        like: the built-in loss, which defines the labels.
        each: the loss of each record, [records]; None: the built-in one's.
        metrics: numbers by name, of all outputs and labels of the public test set; empty: the built-in one's.
    """

    like: str
    each: "Callable[[Tensor, Tensor], Tensor] | None"
    metrics: "Mapping[str, Callable[[Tensor, Tensor], Any]]"

    def loss(self, name: str) -> Loss:
        """Make the loss, under the name that the scenario has for it."""
        kind = LOSSES[self.like]
        own = kind() if self.each is None else type("Given", (kind,), {"each": staticmethod(self.each), "name": name})()
        if self.metrics:
            measure: Any = {
                "tally": lambda outputs, labels: {"all": [(outputs, labels)]},
                "metrics": self._measured_metrics,
            }
            vars(own).update(measure)
        return own

    def _measured_metrics(self, tally: Tally) -> dict[str, float]:
        """Call each metric with all outputs and labels; FederationError names the one that fails."""
        outputs, labels = (torch.cat(each).cpu() for each in zip(*tally["all"], strict=True))
        found = {}
        for name, measure in self.metrics.items():
            try:
                found[name] = float(measure(outputs.clone(), labels.clone()))
            except Exception as error:  # a person's function may raise anything
                raise FederationError(f"metrics: {name} fails ({one_line(error)}); expected: a number") from error
        return found


def is_given(asked: "Scenario") -> bool:
    """Say whether model, loss or records are objects of Python, which no other machine can get."""
    return asked.data.name == "given" or any(
        name.startswith(given.PREFIX) for name in (asked.model.name, asked.client.loss)
    )


def brings_code(asked: "Scenario") -> bool:
    """Say whether the model or the loss is custom code, ``package.module:name``; showing a scenario runs none."""
    return any(is_import_path(name) and not library_of(name) for name in (asked.model.name, asked.client.loss))


def look_for_files(asked: "Scenario") -> None:
    """Look for the files that a scenario names, without reading them or running code.

    Raises:
        ModelError: the module of a custom model or loss, or ``model.initial``, is missing.
        DataError: ``data.path`` is missing.
    """
    for key, name in {"model.name": asked.model.name, "client.loss": asked.client.loss}.items():
        folder = asked.model.folder
        if is_import_path(name) and not name.startswith(given.PREFIX) and not is_there(name, folder):
            module = name.partition(":")[0]
            raise ModelError(f"{key} {name}: no module {module}; expected: installed, or a file in {folder}")
    if asked.model.initial is not None and not Path(asked.model.initial).exists():
        raise ModelError(f"model.initial {asked.model.initial}: no such file; expected: a safetensors file or a folder")
    path = getattr(asked.data, "path", None)
    if path is not None and not Path(path).exists():
        raise DataError(f"data.path {path}: no such file or folder")


def check_name(name: str) -> None:
    """Refuse a loss that is neither built in nor an import path.

    Raises:
        ModelError: one line that names what is accepted.
    """
    if not is_import_path(name) and name not in LOSSES:
        raise ModelError(f"client.loss {unknown(name, [*LOSSES, 'package.module:name'])}")


def loss_of(client: LocalTraining, model: Model) -> Loss:
    """Make the loss that a ``client`` section names.

    Args:
        client: the section.
        model: a custom loss may lie in its ``folder``, beside a custom model.

    Raises:
        ModelError: an unknown name, or an import path that gives no subclass of :class:`Loss`.
    """
    check_name(client.loss)
    if not is_import_path(client.loss):
        return LOSSES[client.loss]()
    accepted = "expected: package.module:name of a subclass of fedamp.federation.losses.Loss"
    try:
        kind = import_own(client.loss, model.folder)
    except InputError as error:
        raise ModelError(f"client.loss: {error}") from None
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ModelError(f"client.loss {client.loss!r} cannot be imported ({one_line(error)}); {accepted}") from error
    if isinstance(kind, Functions):
        return kind.loss(client.loss)
    if not (isinstance(kind, type) and issubclass(kind, Loss)) or kind.__abstractmethods__:
        raise ModelError(f"client.loss {client.loss!r} is {kind!r}; {accepted}, with all its methods")
    own: Loss = kind()
    own.name = client.loss  # type: ignore[misc]
    return own


def form_of(client: LocalTraining, model: Model) -> Form:
    """Return the form of records that a scenario's task expects: labels, vocabulary, most records of a client."""
    return Form(loss_of(client, model).labels, model.vocabulary, client.max_records)


def shown_records(scenario: "Scenario") -> Dataset:
    """Read a scenario's records to show or count them, without running code (:func:`records_of`).

    Raises:
        ModelError: the loss is custom code, which alone knows the form of the labels.
        DataError: the data cannot be read.
    """
    if (loss := scenario.client.loss) not in LOSSES and not loss.startswith(given.PREFIX):
        raise ModelError(f"client.loss {loss} is code, which a run and fedamp check --import run: no records are shown")
    return records_of(scenario)


def records_of(scenario: "Scenario", data: DataSection | None = None) -> Dataset:
    """Read a scenario's data set, or that of another ``data`` section in its place.

    Raises:
        DataError: it cannot be read, or its labels do not suit the loss.
    """
    form = form_of(scenario.client, scenario.model)
    return (data or scenario.data).load(rng.public_seed(scenario.seed, "data"), Path(), form)
