"""The contracts of server optimizers and of losses.

Neither has a privacy cost of its own, because a loss is clipped and noised later, and an optimizer sees noisy sums. But
privacy rests on their form: a loss that mixes records would break the clipping of one client's update. An optimizer
that looked at more than noisy sums would not be post-processing.
"""

from dataclasses import fields, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedamp.data.form import BINARY, CLASSES, NUMBERS, TOKENS
from fedamp.federation import facts
from fedamp.federation.losses import Loss
from fedamp.federation.optimizers import ServerOptimizer
from fedamp.testing.contract import Contract


class OptimizerContract(Contract):
    """The tests of a server optimizer: it post-processes noisy sums, and leaves its arguments as they were.

    Attributes:
        optimizer: the optimizer, with its keys.

    Example:
        >>> from fedamp.federation.optimizers import Sgd
        >>> class TestSgd(OptimizerContract):
        ...     optimizer = Sgd(learning_rate=0.5, momentum=0.9)
        >>> TestSgd().test_coordinates_do_not_depend_on_each_other()
    """

    optimizer: ClassVar[ServerOptimizer]

    @classmethod
    def subject(cls) -> type:
        return type(cls.optimizer)

    def played(self, places: slice, rounds: int = 4) -> NDArray[np.float32]:
        """Take some steps on some coordinates of a model of eight, with the same mean updates each time.

        Args:
            places: which of the eight coordinates.
            rounds: number of steps.

        Returns:
            The coordinates after the steps, float32.
        """
        draw = np.random.default_rng(3)
        parameters = {"w": draw.normal(size=8).astype(np.float32)[places]}
        state = self.optimizer.init(parameters)
        for round_ in range(1, rounds + 1):
            sums = {"w": 7 * draw.normal(size=8)[places]}
            parameters, state = self.optimizer.apply(parameters, sums, {"w": 7.0}, state, round_)
        return parameters["w"]

    def test_coordinates_do_not_depend_on_each_other(self) -> None:
        """A block of coordinates alone moves as it does among the others: the server steps a model in blocks."""
        whole = self.played(slice(None))
        assert whole.dtype == np.float32
        assert np.array_equal(whole[2:5], self.played(slice(2, 5)))

    def test_the_same_sums_give_the_same_model(self) -> None:
        """A step is a function of its arguments: it draws nothing, and keeps nothing outside its state."""
        assert np.array_equal(self.played(slice(None)), self.played(slice(None)))

    def test_what_it_was_given_stays_as_it_was(self) -> None:
        """A step returns new arrays, because the server may repeat a round from the old ones."""
        given = {"w": np.ones(3, np.float32)}
        state = self.optimizer.init(given)
        kept = {kind: arrays["w"].copy() for kind, arrays in state.items()}
        moved, following = self.optimizer.apply(given, {"w": np.ones(3)}, {"w": 1.0}, state, 1)
        assert np.array_equal(given["w"], np.ones(3))
        assert moved["w"].shape == (3,)
        assert set(following) == set(kept), "a step returns each array of its state"
        assert all(np.array_equal(state[kind]["w"], array) for kind, array in kept.items())

    def test_a_step_that_claims_no_memory_depends_on_the_sum_of_its_round_alone(self) -> None:
        """An optimizer that keeps ``SHOWN_ONCE`` has no memory but its ``momentum``, which a scenario names by itself.

        ModelMix is charged for noise that shows in one model alone.
        """
        if facts.SHOWN_ONCE not in self.optimizer.keeps:
            return
        names = {each.name for each in fields(self.optimizer)}  # type: ignore[arg-type]  # a dataclass
        optimizer = replace(self.optimizer, momentum=0.0) if "momentum" in names else self.optimizer  # type: ignore[type-var]
        given, moved = {"w": np.ones(3, np.float32)}, []
        for before in (0.0, 5.0):
            state = optimizer.init(given)
            state = optimizer.apply(given, {"w": np.full(3, before)}, {"w": 1.0}, state, 1)[1]
            moved.append(optimizer.apply(given, {"w": np.ones(3)}, {"w": 1.0}, state, 2)[0]["w"])
        assert np.array_equal(moved[0], moved[1]), (
            "a step remembers the sum of an earlier round; expected: keeps without SHOWN_ONCE"
        )

    def test_the_response_of_a_linear_step_is_what_one_update_adds(self) -> None:
        """``responses`` is what a unit of one round's mean update adds to the model after 0, 1, .. further rounds.

        Correlated noise is chosen by the response. A step that is not linear counts as its learning rate.
        """
        rounds, answers = 5, []
        for first in (0.0, 1.0):
            parameters = {"w": np.zeros(1, np.float32)}
            state, path = self.optimizer.init(parameters), []
            for round_ in range(1, rounds + 1):
                sums = {"w": np.array([first if round_ == 1 else 0.0])}
                parameters, state = self.optimizer.apply(parameters, sums, {"w": 1.0}, state, round_)
                path.append(float(parameters["w"][0]))
            answers.append(np.array(path))
        response = self.optimizer.step_responses(rounds)[0]  # of the model that clients start from
        assert response.shape == (rounds,)
        is_linear = np.allclose(answers[1] - answers[0], response, rtol=1e-5, atol=1e-6)
        assert is_linear or np.allclose(response, self.optimizer.learning_rate)


class LossContract(Contract):
    """The tests of a loss: a record counts by itself, gradients are right, and metrics follow from sums.

    Attributes:
        loss: the loss.
        clients: number of clients in the test's batch.
        records: number of records of each client.
        outputs: number of outputs of the model, or classes.
        length: number of places of a sequence, where labels are tokens.

    Example:
        >>> from fedamp.federation.losses import MeanSquaredError
        >>> class TestSquares(LossContract):
        ...     loss = MeanSquaredError()
        >>> TestSquares().test_a_record_depends_on_itself_alone()
    """

    loss: ClassVar[Loss]
    clients: ClassVar[int] = 3
    records: ClassVar[int] = 4
    outputs: ClassVar[int] = 5
    length: ClassVar[int] = 6

    def task(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw outputs and labels.

        Returns:
            Outputs [clients, records, outputs], or [clients, records, length, outputs] for tokens; labels [clients,
            records] for classes, [clients, records, length] for tokens, else of the shape of the outputs.
        """
        draw = torch.Generator().manual_seed(1)
        shape = (self.clients, self.records)
        labels = {
            CLASSES: lambda: torch.randint(self.outputs, shape, generator=draw),
            NUMBERS: lambda: torch.randn(*shape, self.outputs, generator=draw),
            BINARY: lambda: torch.randint(2, (*shape, self.outputs), generator=draw).float(),
            TOKENS: lambda: torch.randint(self.outputs, (*shape, self.length), generator=draw),
        }[self.loss.labels]()
        places = (self.length,) if self.loss.labels is TOKENS else ()
        return torch.randn(*shape, *places, self.outputs, generator=draw), labels

    def test_a_record_depends_on_itself_alone(self) -> None:
        """The loss of the first record stays the same when all others become NaN."""
        outputs, labels = (each[0] for each in self.task())
        before = self.loss.each(outputs, labels)
        assert before.shape == (self.records,)
        outputs[1:] = torch.nan
        assert self.loss.each(outputs, labels)[0] == before[0]

    def test_clients_together_are_clients_alone(self) -> None:
        """``of_clients`` gives the losses that each client alone would have: clients are trained as one stack."""
        outputs, labels = self.task()
        alone = torch.stack([self.loss.each(*client) for client in zip(outputs, labels, strict=True)])
        torch.testing.assert_close(self.loss.of_clients(outputs, labels), alone)

    def test_gradients_are_those_of_the_weighted_sum(self) -> None:
        """``gradients`` agrees with autograd of the weighted sum of losses."""
        outputs, labels = self.task()
        weights = torch.rand(self.clients, self.records, generator=torch.Generator().manual_seed(2))
        leaf = outputs.clone().requires_grad_()
        (expected,) = torch.autograd.grad((self.loss.of_clients(leaf, labels) * weights).sum(), leaf)
        torch.testing.assert_close(self.loss.gradients(outputs, labels, weights), expected)

    def test_metrics_follow_from_sums_over_batches(self) -> None:
        """Tallies of two batches add up to the tally of both, and the first metric is at most 1."""
        outputs, labels = (each.flatten(0, 1) for each in self.task())
        parts = [self.loss.tally(outputs[part], labels[part]) for part in (slice(0, 5), slice(5, None))]
        whole = self.loss.metrics(self.loss.tally(outputs, labels))
        added = self.loss.metrics({key: parts[0][key] + parts[1][key] for key in parts[0]})
        assert list(added) == list(whole)
        assert np.allclose(list(added.values()), list(whole.values()), rtol=1e-6)
        assert next(iter(whole.values())) <= 1, "the first metric leads: it is at most 1"
