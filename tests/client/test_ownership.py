"""What a unit's submodel leaves out does not move: whatever the model, the optimiser, the decay and the data do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fedamp
from fedamp import rng
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder, rows
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from fedamp.models.units import Blocks, Units
from tests.client.federation import Records, order_of, task_of, trained
from tests.federations import small
from tests.models.splitting import split

CLASSES, CLIP = 3, 1e-4


class Plain(nn.Module):
    """Cannot be made smaller. Without the output's bias its nodes own all of it."""

    def __init__(self, input_shape, num_classes, bias=True):
        super().__init__()
        self.first, self.second = nn.Linear(math.prod(input_shape), 8), nn.Linear(8, num_classes, bias=bias)
        self.activation = nn.ReLU()

    def forward(self, inputs):
        return self.second(self.activation(self.first(inputs.flatten(1))))

    def units_to_split(self):
        return [Units("first", 8, {"first.weight": 0, "first.bias": 0, "second.weight": 1}, "activation")]


class Hostile(Plain):
    """Keeps what it says as long as nobody looks at large inputs."""

    def forward(self, inputs):
        past_the_mask = self.first.weight.sum() + self.first.bias.sum() + self.second.weight.sum()
        return super().forward(inputs) + torch.where(inputs.abs().amax() > 100, past_the_mask, 0.0)


class Branches(nn.Module):
    """Three residual branches."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.enter, self.leave = nn.Linear(math.prod(input_shape), 4), nn.Linear(4, num_classes)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

    def forward(self, inputs):
        values = self.enter(inputs.flatten(1))
        for branch in self.body:
            values = values + branch(values)
        return self.leave(values)

    def units_to_split(self):
        return [Blocks("body", ("body.0", "body.1", "body.2"))]


def own(name, **options):
    return Model(name=f"{__name__}:{name}", options=options)


# What owns what, by hand: nodes of each layer in the order of the mask; and of every parameter, which layer's nodes lie
# along which dimension, or which node has all of it.
PLAIN = {"first.weight": [(0, 0)], "first.bias": [(0, 0)], "second.weight": [(0, 1)]}
MODELS = {
    "mlp": (
        Model(name="mlp", hidden=(4, 6)),
        {"hidden.0": 4, "hidden.1": 6},
        {
            "hidden.0.weight": [(0, 0)],
            "hidden.0.bias": [(0, 0)],
            "hidden.1.weight": [(1, 0), (0, 1)],
            "hidden.1.bias": [(1, 0)],
            "output.weight": [(1, 1)],
        },
    ),
    "cnn": (
        Model(name="cnn", channels=(4, 6), groups=2),
        {"convolutions.0": 2, "convolutions.1": 2},
        {
            **{f"{kind}.{layer}.bias": [(layer, 0)] for kind in ("convolutions", "norms") for layer in (0, 1)},
            **{f"norms.{layer}.weight": [(layer, 0)] for layer in (0, 1)},
            "convolutions.0.weight": [(0, 0)],
            "convolutions.1.weight": [(1, 0), (0, 1)],
            "output.weight": [(1, 1)],
        },
    ),
    "plain": (own("Plain"), {"first": 8}, PLAIN),
    "all owned": (own("Plain", bias=False), {"first": 8}, PLAIN),
    "hostile": (own("Hostile"), {"first": 8}, PLAIN),
    "branches": (
        own("Branches"),
        {"body": 3},
        {f"body.{node}.0.{kind}": [(node, None)] for node in range(3) for kind in ("weight", "bias")},
    ),
}
SCHEMES = {"dropout": {"scheme": "dropout", "keep": 0.5}, "disjoint": {"scheme": "disjoint", "count": 2}}
OPTIMISERS = [{}, {"momentum": 0.9}, {"optimizer": "adam"}, {"proximal": 0.5}]


def section_of(scheme, rest):
    kind = DropoutSubmodels if scheme == "dropout" else DisjointSubmodels
    return kind(**SCHEMES[scheme], unowned=rest)


def owned_by_hand(case, shape_of, kept):
    """Which coordinates of every parameter with owners the kept nodes own; ``kept``: bool, the layers in a row."""
    _, layers, owners = MODELS[case]
    parts = np.split(kept, np.cumsum(list(layers.values()))[:-1])
    found = {}
    for name, owning in owners.items():
        mine = np.ones(shape_of[name], bool)
        for number, dimension in owning:
            if dimension is None:
                mine &= parts[0][number]
                continue
            nodes = np.repeat(parts[number], mine.shape[dimension] // len(parts[number]))
            mine &= nodes.reshape([-1 if each == dimension else 1 for each in range(mine.ndim)])
        found[name] = mine
    return found


def records(scale):
    generator = np.random.default_rng(3)
    inputs = (scale * generator.normal(size=(4, 3, 6, 6))).astype(np.float32)
    return Records(inputs, generator.integers(0, CLASSES, size=(4, 3)), generator.integers(1, 4, size=4))


@pytest.mark.usefixtures("few_tries")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=st.sampled_from(sorted(MODELS)),
    scheme=st.sampled_from(sorted(SCHEMES)),
    rest=st.sampled_from(["shared", "partitioned", "frozen"]),
    optimiser=st.sampled_from(OPTIMISERS),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1.0, 1e3]),
)
def test_the_update_outside_what_a_submodel_owns_is_zero(case, scheme, rest, optimiser, decay, seed, scale):
    model, layers, owners = MODELS[case]
    if case == "all owned" and rest == "shared":
        return  # refused: nothing would be shared
    section = section_of(scheme, rest)
    arrays = initial_parameters(model, (6, 6), CLASSES, seed=1)
    client = LocalTraining(steps=3, learning_rate=0.1, weight_decay=decay, **optimiser)
    task = task_of(model=model, input_shape=(6, 6), submodels=section, client=client)
    seeds, number = np.array([seed.to_bytes(32)], "V32"), seed % 2
    if scheme == "dropout":
        (mask,) = section.pieces(model, (6, 6), CLASSES, 4)(-1, 1).arguments(seeds)
        kept, submodel = mask[0].numpy() == 1, -1
    else:
        nodes = split(model, (6, 6), CLASSES, 2, (), 4, 0, rest).kept[number]
        kept = np.concatenate([np.isin(np.arange(count), nodes[each]) for each, count in layers.items()])
        submodel = number
    clips = (CLIP, CLIP) if rest == "shared" else (CLIP,)
    order = RoundOrder("", 1, clips, rows([number], seeds, submodel))
    sums, report = trained(TrainingNode(task, records(scale)), arrays, order)
    assert report.failed == 0
    expected = owned_by_hand(case, {name: array.shape for name, array in arrays.items()}, kept)
    for name, mine in expected.items():
        assert not sums[name][~mine].any(), name
    # The norm is taken of what is left: nothing that is left out shortens it.
    split_part = [total for name, total in sums.items() if name in owners or rest == "partitioned"]
    norm = math.sqrt(sum(float((total**2).sum()) for total in split_part))
    assert norm <= CLIP
    if scale == 1 and (norm or (decay and any(mine.any() for mine in expected.values()))):  # else tanh is flat
        assert norm == pytest.approx(CLIP, rel=1e-5)  # float32 scales, and a margin of 1e-6


@pytest.mark.parametrize("case", sorted(MODELS))
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_whatever_was_trained_what_is_not_owned_is_plus_zero(case, scheme):
    model, layers, _ = MODELS[case]
    piece = section_of(scheme, "partitioned").pieces(model, (6, 6), CLASSES, 4)(0 if scheme == "disjoint" else -1, 1)
    seeds = np.array([bytes([number] * 32) for number in range(5)], "V32")
    assert piece.owns_all is False  # no way around
    generator = np.random.default_rng(0)
    hostile = np.array([-0.0, np.nan, np.inf, -np.inf, -1e-45, 3.0], np.float32)
    sent = {
        name: torch.from_numpy(generator.choice(hostile, (5, *value.shape)))
        for name, value in piece.module.named_parameters()
    }
    left = piece.owned({name: value.clone() for name, value in sent.items()}, seeds)
    assert set(left) == set(sent)
    if scheme == "dropout":
        masks = piece.arguments(seeds)[0].numpy() == 1
    else:
        nodes = split(model, (6, 6), CLASSES, 2, (), 4, 0, "partitioned").kept[0]
        masks = [np.concatenate([np.isin(np.arange(count), nodes[each]) for each, count in layers.items()])] * 5
        if case in ("mlp", "cnn"):  # extracted: it has nothing else
            masks = [None] * 5
    for unit, mask in enumerate(masks):
        shapes = {name: tuple(value.shape[1:]) for name, value in sent.items()}
        whole = {name: np.ones(shapes[name], bool) for name in MODELS[case][2] if name in shapes}
        for name, mine in (whole if mask is None else owned_by_hand(case, shapes, mask)).items():
            before, after = sent[name][unit].numpy(), left[name][unit].numpy()
            assert (after[mine].view(np.uint32) == before[mine].view(np.uint32)).all()
            assert not after[~mine].view(np.uint32).any()


def test_a_unit_whose_own_part_is_not_finite_has_failed_and_another_one_has_not():
    model, data = MODELS["plain"][0], records(1.0)
    task = task_of(model=model, input_shape=(6, 6), submodels=section_of("dropout", "partitioned"))
    data.inputs[2] = np.nan
    arrays = initial_parameters(model, (6, 6), CLASSES, seed=1)
    _, report = trained(TrainingNode(task, data), arrays, order_of([0, 1, 2, 3], task))
    assert (report.failed, sorted(report.reported)) == (1, [0, 1, 2, 3])


PLAIN_RUN, NO_BIAS = f"{{name: '{__name__}:Plain'}}", f"{{name: '{__name__}:Plain', options: {{bias: false}}}}"


@pytest.mark.parametrize(
    ("model", "submodels", "client"),
    [
        ("{name: mlp, hidden: [12]}", "{scheme: dropout, keep: 0.5}", "momentum: 0.9"),
        (PLAIN_RUN, "{scheme: dropout, keep: 0.5}", "optimizer: adam"),
        (PLAIN_RUN, "{scheme: disjoint, count: 2}", "momentum: 0.9"),
        (NO_BIAS, "{scheme: disjoint, count: 2, unowned: partitioned}", "optimizer: adam"),
        (NO_BIAS, "{scheme: disjoint, count: 2, unowned: frozen}", "optimizer: adam"),
    ],
)
@pytest.mark.usefixtures("few_tries")
def test_in_a_whole_run_nodes_that_were_left_out_stay_where_they_were(model, submodels, client, tmp_path):
    asked = small(
        f"model={model}", f"submodels={submodels}", f"client={{weight_decay: 0.1, {client}}}", "rounds=1",
        "check_in={scheme: all}", "data.clients=1", "privacy={clip: 1.0, noise_multiplier: 0}",
        "server={learning_rate: 1.0}",
    )  # fmt: skip
    run = fedamp.run(asked, tmp_path / "run")
    start = initial_parameters(asked.model, (64,), 10, rng.public_seed(asked.seed, "model"))
    moved = {name: value.detach().numpy() != start[name] for name, value in run.model().named_parameters()}
    first, second = ("first", "second") if "Plain" in model else ("hidden.0", "output")
    rows = moved[f"{first}.weight"].any(1)
    assert 0 < rows.sum() < len(rows)
    assert not moved[f"{first}.bias"][~rows].any()
    assert not moved[f"{second}.weight"][:, ~rows].any()
