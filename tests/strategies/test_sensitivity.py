"""One unit's records, whatever they are, move the released sum by at most the clipping norm of each part.

Neighbours are zero-out: the same federation with a unit's contribution and without. On both engines, through the real
client app and the real server, with the noise off.
"""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from fedamp.engines import flower
from fedamp.engines.engines import only, open_grid
from fedamp.engines.wire import RoundAnswer
from fedamp.federation.plan import make_plan
from fedamp.federation.running import Engine
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies import PrivateStrategy
from tests.federations import small
from tests.orders import answer_in, order_in

# What the first units' records hold; the others are ordinary. Files with NaN or infinity are refused when they are
# read, but numbers near the largest float32 make both inside the network.
ADVERSARIAL = {0: 3e38, 1: -3e38, 2: 1e20, 3: 1e4, 4: 1e-38, 5: 0.0}
UNITS, RECORDS, FEATURES, CLASSES = 12, 3, 6, 4

STRATEGIES = {
    "whole": [],
    "disjoint": ["submodels={scheme: disjoint, count: 3, shared: [output], shared_clip: 0.2}"],
    "fresh": ["submodels={scheme: disjoint, count: 2, partition: fresh}"],
    "dropout": ["submodels={scheme: dropout, keep: 0.5, shared_clip: 0.3}"],
    "dealt": ["submodels={scheme: disjoint, count: 3, unowned: partitioned}"],
    "frozen masks": ["submodels={scheme: dropout, keep: 0.5, unowned: frozen}"],
    "modelmix": ["mixing={width: 0.1, linf_coordinates: 9}"],
    "modelmix of submodels": ["mixing={width: 0.1, linf_coordinates: 4}", "submodels={scheme: disjoint, count: 3}"],
    "adaptive": ["privacy.clip={initial: 0.5}"],
    "auto": ["privacy.clip=auto"],
}
CLIENTS = {
    "a step": "{steps: 1, learning_rate: 1.0}",
    "epochs": "{epochs: 3, batch_size: 2, learning_rate: 1.0, proximal: 0.5}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of all units, as a person would store them."""
    path = tmp_path_factory.mktemp("adversarial")
    generator = np.random.default_rng(2)
    inputs = generator.normal(size=(UNITS * RECORDS, FEATURES)).astype(np.float32)
    owners = np.repeat(np.arange(UNITS), RECORDS)
    for unit, value in ADVERSARIAL.items():
        inputs[owners == unit] = value * np.sign(generator.normal(size=(RECORDS, FEATURES)) + 0.5)
    labels = generator.integers(0, CLASSES, size=len(inputs))
    labels[:CLASSES] = np.arange(CLASSES)
    np.savez(path / "train.npz", x=inputs, y=labels, client=owners)
    np.savez(path / "test.npz", x=np.zeros((CLASSES, FEATURES), np.float32), y=np.arange(CLASSES))
    return path


# Every strategy, and on Ray those whose messages hold more than a model and clients.
ON_GRIDS = pytest.mark.parametrize(
    ("grid", "strategy"),
    [
        *(("serial", name) for name in STRATEGIES),
        pytest.param("ray", "disjoint", marks=pytest.mark.slow),
        pytest.param("ray", "dropout", marks=pytest.mark.slow),
    ],
    indirect=["grid"],
)


@pytest.fixture(scope="module")
def grid(request, tmp_path_factory):
    if request.param == "ray":
        pytest.importorskip("ray")
    engine = Engine(kind=request.param, workers=1, device="cpu")
    with open_grid(engine, tmp_path_factory.mktemp("log") / "log.txt") as grid:
        yield grid


def federation(folder, strategy: str, client: str, unit: str = "client") -> RunInputs:
    return prepare(
        small(
            f"data={{name: npz, path: {folder}, classes: {CLASSES}, partition: {{scheme: natural}}}}",
            "model={name: mlp, hidden: [48]}",  # a smaller one is tried longer before it trains in stacks
            "rounds=2",
            "check_in={scheme: all}",
            f"client={CLIENTS[client]}",
            "server={learning_rate: 1.0}",
            f"privacy={{unit: {unit}, clip: 0.5, noise_multiplier: 1.0}}",
            *STRATEGIES[strategy],
        )
    )


def answer(grid, message: Message, without: int | None = None) -> Message:
    """The node's reply to the server's message, or to the same one without a unit."""
    asked = only(message, np.array([unit != without for unit in order_in(message).rows["id"]]))
    (reply,) = grid.send_and_receive([Message(asked.content, message.metadata.dst_node_id, "train")], timeout=60)
    assert not reply.has_error(), reply.error
    return reply


def model_after(prepared: RunInputs, grid, reply: Message) -> dict:
    """The released model, noise off."""
    silent = small(f"privacy={{unit: {prepared.plan.scenario.privacy.unit}, clip: 0.5, noise_multiplier: 0}}")
    plan = make_plan(prepared.plan.scenario.model_copy(update={"privacy": silent.privacy}), prepared.plan.units)
    strategy = prepared.with_plan(plan).strategy(prepared.state)
    for message in strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid):
        flower.set_message_id(message, reply.metadata.reply_to_message_id)
    strategy.aggregate_train(1, [reply])
    return strategy.state.parameters


def norms(prepared: RunInputs, one: dict, other: dict, per_unit: bool) -> list[float]:
    """Norm of the difference of each part; of models in the units of the sum (server.learning_rate is 1)."""
    part_of = prepared.pipeline.model.part_of
    squares = [0.0] * len(prepared.plan.parts)
    for name in one:
        if name not in part_of:  # frozen, for everybody
            assert np.array_equal(one[name], prepared.state.parameters[name])
            continue
        part = part_of[name]
        factor = prepared.plan.parts[part].denominator if per_unit else 1.0
        difference = (one[name].astype(np.float64) - other[name].astype(np.float64)) * factor
        squares[part] += float((difference**2).sum())
    return [float(np.sqrt(square)) for square in squares]


def first_message(prepared: RunInputs, grid) -> tuple[PrivateStrategy, Message]:
    strategy = prepared.strategy(prepared.state)
    (message,) = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    return strategy, message


@ON_GRIDS
def test_a_client_moves_each_part_by_at_most_its_clip(strategy, folder, grid):
    prepared = federation(folder, strategy, "epochs")
    _, message = first_message(prepared, grid)
    clips = order_in(message).clips
    whole = answer(grid, message)
    sums = answer_in(whole, message).sums
    released = model_after(prepared, grid, whole)
    assert all(np.isfinite(array).all() for array in released.values())
    for unit in [*ADVERSARIAL, UNITS - 1]:
        other = answer(grid, message, without=unit)
        # Each unit trains by itself, and sums are exact: no tolerance.
        for norm, clip in zip(norms(prepared, sums, answer_in(other, message).sums, False), clips, strict=True):
            assert norm <= clip
        # Models are float32 of size 1, in units of 12 contributors: 12 * 2**-24 * sqrt(532 coordinates).
        moved = norms(prepared, released, model_after(prepared, grid, other), True)
        assert all(norm <= clip + 2e-5 for norm, clip in zip(moved, clips, strict=True))
        check_counts(answer_in(whole, message), answer_in(other, message))


def check_counts(whole: RoundAnswer, other: RoundAnswer) -> None:
    """What adaptive clipping releases, the centred count, moves by at most one half."""
    one, two = (answer.below_clip - len(answer.reported) / 2 for answer in (whole, other))
    assert abs(one - two) <= 0.5


@ON_GRIDS
def test_a_record_moves_each_part_by_at_most_its_clip(strategy, folder, grid):
    prepared = federation(folder, strategy, "a step", unit="sample")
    _, message = first_message(prepared, grid)
    assert len(order_in(message).ids) == UNITS * RECORDS
    tried = np.arange(UNITS * RECORDS) % 4 == 0
    message = only(message, tried)
    whole = answer_in(answer(grid, message), message).sums
    for record in np.flatnonzero(tried).tolist():
        other = answer_in(answer(grid, message, without=record), message).sums
        for norm, clip in zip(norms(prepared, whole, other, False), prepared.plan.parts, strict=True):
            assert norm <= clip.clip


@pytest.mark.parametrize("grid", ["serial"], indirect=True)
def test_ordinary_units_do_reach_their_clip(folder, grid):
    """Otherwise the bound above would hold for reasons other than clipping."""
    prepared = federation(folder, "disjoint", "epochs")
    _, message = first_message(prepared, grid)
    whole = answer_in(answer(grid, message), message).sums
    other = answer_in(answer(grid, message, without=3), message).sums
    assert norms(prepared, whole, other, False) == pytest.approx([0.2, 0.5], rel=1e-5)
