"""Define a classifier of scikit-learn that trains a private federation of the owners of its records."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from fedamp import api
from fedamp.base.files import temporary_folder
from fedamp.errors import needs_extras

with needs_extras():
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

MOST_SEEDS = 2**31 - 1


class FedampClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that protects each owner of records with differential privacy.

    Columns are public, and so are the classes: give them where the labels that occur may tell something. Scale inputs
    by public knowledge; a scaler that is fitted to private records is a release without noise.

    Args:
        epsilon: budget for the run; infinity trains without privacy.
        delta: of the guarantee.
        rounds: their number.
        model: built-in name, or a section, as ``{"name": "mlp", "hidden": [32]}``.
        classes: labels in order, public knowledge; None: those of ``y`` count as public.
        out: run folder; None: a temporary one, so that only the released model is left.
        random_state: None: the noise comes from the system. A number makes the run repeatable, and protects nobody who
            is known to somebody who knows the number.
        settings: further settings of :func:`fedamp.load` by key, as ``{"check_in": {"k": 4}}``.

    Attributes:
        classes_: labels, [classes].
        n_features_in_: number of columns.
        run_: the run, as :func:`fedamp.open` reads it.
        epsilon_: upper end of what the run cost; infinity without noise.

    Example:
        >>> import fedamp, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
        >>> y, owners = np.where(x[:, 0] > 0, "right", "left"), np.arange(400) // 4
        >>> small = fedamp.FedampClassifier(epsilon=8, rounds=10).fit(x, y, owners=owners)
        >>> round(small.epsilon_, 2), bool(small.score(x, y) > 0.8)
        (8.0, True)
    """

    def __init__(
        self,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        rounds: int = 30,
        model: str | Mapping[str, Any] = "logistic",
        classes: ArrayLike | None = None,
        out: str | Path | None = None,
        random_state: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon, self.delta, self.rounds, self.model = epsilon, delta, rounds, model
        self.classes, self.out, self.random_state, self.settings = classes, out, random_state, settings

    def fit(self, X: ArrayLike, y: ArrayLike, owners: ArrayLike | None = None) -> Self:
        """Train a federation of the owners.

        Args:
            X: inputs, [records, columns].
            y: labels, [records].
            owners: whose record each is: numbers or names, [records]. None: each record has an owner of its own.

        Raises:
            ValueError: arrays of other shapes, a label that is not among the classes, or a single class.
            InputError: the settings are wrong; one line names the fault.
        """
        inputs, labels = validate_data(self, X, y)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise ValueError(f"one class: {self.classes_[0]}; expected: at least two classes")
        order = np.argsort(self.classes_)
        places = order[np.minimum(np.searchsorted(self.classes_, labels, sorter=order), len(order) - 1)]
        if (wrong := self.classes_[places] != labels).any():
            raise ValueError(f"label {labels[wrong][0]}; expected: one of the classes")
        people = np.arange(len(labels)) if owners is None else np.asarray(owners)
        if people.shape != labels.shape:
            raise ValueError(f"owners of shape {people.shape}; expected: one for each record, {labels.shape}")
        if self.out is not None:
            self.run_ = self._trained(inputs, places, people, Path(self.out))
        else:
            with temporary_folder("fedamp-fit-") as place:
                self.run_ = self._trained(inputs, places, people, Path(place) / "run")
        self.epsilon_ = math.inf if self.run_.epsilon is None else self.run_.epsilon
        return self

    def _trained(self, inputs: NDArray[Any], places: NDArray[Any], owners: NDArray[Any], folder: Path) -> Any:
        """Run the federation, and keep its model in memory: a temporary folder ends with the call."""
        private = math.isfinite(self.epsilon)
        noise = {"noise_multiplier": "auto", "epsilon": self.epsilon} if private else {"noise_multiplier": 0}
        seed = {} if self.random_state is None else {"seed": int(self.random_state) % MOST_SEEDS, "known_seed": True}
        found = api.run(
            None,
            folder,
            **{
                "name": "classifier",
                "data": (inputs.astype(np.float32), places.astype(np.int64), owners),
                "data.classes": len(self.classes_),
                "model": self.model if isinstance(self.model, Mapping) else {"name": self.model},
                "rounds": self.rounds,
                "check_in": {"scheme": "balanced", "k": max(1, self.rounds // 3)},
                "client": {"steps": 5, "learning_rate": 0.5},
                "privacy": {"clip": 1.0, "delta": self.delta, **noise},
                "federation.evaluate_every": 0,  # there are no public test records
                "engine": {"kind": "serial"},
                **seed,
                **(self.settings or {}),
            },
        )
        self._module = found.model().double()  # so that no batch changes an answer by more than its rounding
        return found

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return logits [records, classes]; with two classes the difference of the two, [records]."""
        logits: NDArray[np.float64] = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return probabilities, [records, classes]."""
        found: NDArray[np.float64] = softmax(self._logits(X), axis=1)
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely label of each input, [records]."""
        best = self._logits(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def _logits(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the model's outputs, [records, classes]."""
        import torch

        check_is_fitted(self)
        inputs = validate_data(self, X, reset=False)
        with torch.inference_mode():
            outputs: NDArray[np.float64] = self._module(torch.as_tensor(inputs.astype(np.float64))).numpy()
        return outputs
