"""The release pipeline from outside: what changes when, and that its two open seams take a class of somebody else's."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from fedamp.client.clipping import quantum
from fedamp.engines.engines import CLIENT_APP, only
from fedamp.engines.simulation import SerialGrid
from fedamp.engines.wire import RoundAnswer
from fedamp.errors import FederationError
from fedamp.noise import IndependentGaussian, Noise
from fedamp.runs.checkpoint import read_checkpoint, write_checkpoint
from fedamp.runs.folder import RoundRecord
from fedamp.server.loop import ask
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies import PrivateStrategy
from fedamp.strategies.aggregation import Aggregate, Aggregator, ClippedSums, NodeOrders
from fedamp.strategies.private import AskedRound
from tests.federations import small
from tests.orders import order_in


@pytest.fixture(scope="module")
def grid():
    with SerialGrid(CLIENT_APP, "cpu") as grid:
        yield grid


def play(strategy: PrivateStrategy, grid: SerialGrid, rounds: range) -> None:
    for round_ in rounds:
        strategy.release(round_, ask(strategy, grid, round_))


def with_steps(prepared: RunInputs, **steps) -> PrivateStrategy:
    pipeline = replace(prepared.pipeline, **steps)
    state = pipeline.start(prepared.state.parameters)
    return PrivateStrategy(pipeline, prepared.task, state)


def test_a_release_is_the_step_of_the_model(grid):
    prepared = prepare(small("server={learning_rate: 0.5}"))
    strategy = prepared.strategy(prepared.state)
    state, release = strategy.pipeline.release(strategy.state, 1, ask(strategy, grid, 1))
    assert strategy.state is prepared.state
    assert (release.round, state.round, release.parameters) == (1, 1, state.parameters)
    for name, before in prepared.state.parameters.items():
        mean = release.noisy_sums[name] / prepared.plan.parts[0].denominator
        assert np.array_equal(release.parameters[name], before + (0.5 * mean).astype(np.float32))


@pytest.mark.parametrize(
    ("override", "round_", "words"),
    [
        ("federation={quorum: 0.0}", 1, "none of 25 clients reported"),
        ("privacy.epsilon=0.01", 1, "would exceed the budget"),
        ("seed=3", 2, "round 2 is out of turn after round 0"),
    ],
)
def test_nothing_changes_below_quorum_beyond_the_budget_or_out_of_turn(override, round_, words, grid):
    prepared = prepare(small(override))
    strategy = prepared.strategy(prepared.state)
    nobody = strategy.sum_replies(AskedRound(round_), [])
    sums = {name: array.copy() for name, array in nobody.sums.items()}
    with pytest.raises(FederationError, match=words):
        strategy.release(round_, nobody)
    with pytest.raises(FederationError, match=words):
        strategy.aggregate_train(round_, [])
    assert strategy.state is prepared.state
    assert all(np.array_equal(nobody.sums[name], array) for name, array in sums.items())


def trained_by_the_first_submodel(prepared: RunInputs, grid: SerialGrid, round_: int) -> set[int]:
    """Hidden nodes of which the released model changes if only the units that drew submodel 0 answer."""
    strategy = prepared.strategy(replace(prepared.state, round=round_ - 1))
    (message,) = strategy.configure_train(round_, strategy.arrays(), ConfigRecord(), grid)
    (reply,) = grid.send_and_receive([only(message, order_in(message).rows["submodel"] == 0)])
    strategy.aggregate_train(round_, [reply])
    change = strategy.state.parameters["hidden.0.weight"] - prepared.state.parameters["hidden.0.weight"]
    # What a node of its own would be sent of the model is what is trained.
    sent = prepared.pieces(0, round_).extract(prepared.state.parameters)["hidden.0.weight"]
    moved = change.any(axis=1)
    assert np.array_equal(prepared.state.parameters["hidden.0.weight"][moved], sent)
    return set(np.flatnonzero(moved).tolist())


@pytest.mark.parametrize("partition", ["fixed", "fresh"])
def test_a_fresh_partition_cuts_the_model_anew_in_every_round_and_a_fixed_one_never(partition, grid):
    submodels = f"submodels={{scheme: disjoint, count: 2, partition: {partition}}}"
    scenario = small(
        "model={name: mlp, hidden: [12]}",
        submodels,
        "check_in={scheme: all}",
        "privacy.noise_multiplier=0",
        "federation={quorum: 0.0}",
    )
    prepared = prepare(scenario)
    cuts = [trained_by_the_first_submodel(prepared, grid, round_) for round_ in (1, 2, 3, 1)]
    assert [len(cut) for cut in cuts] == [6] * 4
    assert cuts[0] == cuts[3]
    # Two cuts of 12 nodes are the same with a chance of 1 in 924; the seed is fixed.
    assert len({tuple(sorted(cut)) for cut in cuts}) == (3 if partition == "fresh" else 1)


class MaskedSums(Aggregator):
    """Integers modulo 2**64, hidden by masks that cancel: the least that a secure aggregation does to the sums."""

    def aggregate(self, replies: list[Message], asked: NodeOrders) -> Aggregate:
        generator, unit = np.random.default_rng(1), quantum(*asked.clips)
        total = ClippedSums().aggregate(replies, asked)  # for the counts
        for name, shape in asked.model.shapes.items():
            masked, masks = (np.zeros(shape, np.uint64) for _ in range(2))
            for reply in replies:
                own = RoundAnswer.of(reply.content, asked.orders[reply.metadata.src_node_id]).sums[name]
                mask = generator.integers(0, 2**64, size=shape, dtype=np.uint64)
                masks += mask
                masked += (own / unit).astype(np.int64).view(np.uint64) + mask
            total.sums[name] = (masked - masks).view(np.int64) * unit
        return total


def test_another_aggregator_is_a_class(grid):
    prepared = prepare(small("engine.clients_per_batch=4"))
    plain, masked = prepared.strategy(prepared.state), with_steps(prepared, aggregator=MaskedSums())
    for strategy in (plain, masked):
        play(strategy, grid, range(1, 4))
    for name, array in plain.state.parameters.items():
        assert np.array_equal(array, masked.state.parameters[name])  # sums of integers are exact


class Telescoping(Noise):
    """Each round takes off the noise of the one before: correlated, so it must remember."""

    def init(self, parameters):
        return {"last": {name: np.zeros_like(array) for name, array in parameters.items()}}

    def update(self, sums, deviation_of, hidden, state, seed, round_):
        fresh = {name: np.zeros_like(array) for name, array in sums.items()}
        IndependentGaussian().update(fresh, deviation_of, hidden, {}, seed, round_)
        for name, total in sums.items():
            total += fresh[name].astype(np.float32) - state["last"][name]
        return {"last": {name: noise.astype(np.float32) for name, noise in fresh.items()}}


def test_noise_that_remembers_is_a_class_and_what_it_remembers_is_in_the_checkpoint(grid, tmp_path):
    prepared = prepare(small("server={learning_rate: 1.0}", "check_in={scheme: all}"))
    strategy = with_steps(prepared, noise=Telescoping())
    play(strategy, grid, range(1, 4))
    record = RoundRecord(
        round=3, loss=None, accuracy=None, epsilon_upper=None, scheduled=60, reported=60, seconds=0.0, unprotected={}
    )
    write_checkpoint(tmp_path, strategy.state, record, "scenario")
    (file,) = tmp_path.iterdir()
    again = with_steps(prepared, noise=Telescoping())
    again.state, _ = read_checkpoint(file, "scenario", prepared.state)
    for each in (strategy, again):
        play(each, grid, range(4, 7))
    for name, array in strategy.state.parameters.items():
        assert np.array_equal(array, again.state.parameters[name])


def test_a_forged_or_replayed_reply_is_left_out(grid, caplog):
    """Of a round in which everybody takes part, so that an older reply names just the units that are asked for."""
    prepared = prepare(small("check_in={scheme: all}"))
    strategy = prepared.strategy(prepared.state)
    (message,) = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    (old,) = grid.send_and_receive([message])
    strategy.aggregate_train(1, [old])
    asked = strategy.order_round(2, grid)
    (new,) = grid.send_and_receive(asked.messages)
    honest = strategy.sum_replies(asked, [new])
    aggregate = strategy.sum_replies(asked, [old, new])
    assert (aggregate.refused_nodes, aggregate.reported) == (1, 60)
    assert all(np.array_equal(aggregate.sums[name], honest.sums[name]) for name in honest.sums)
    assert "was left out: it answers no request" in caplog.text
