"""How a released model serves each client, with the parameters of its own; numbers of a simulation, without noise."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base.devices import one_thread
from fedamp.client.personal import PersonalLayers
from fedamp.errors import InputError
from fedamp.federation.losses import form_of, loss_of
from fedamp.models.pieces import local_names
from fedamp.runs.run import Run
from fedamp.server.evaluate import evaluate


@dataclass(frozen=True)
class ByClient:
    """Of the clients that have records to test on. UNPROTECTED: each number follows from a client's records."""

    clients: NDArray[np.int64]  # [n], their ids
    records: NDArray[np.int64]  # [n], of each to test on
    loss: NDArray[np.float64]  # [n], mean over the records of each
    score: NDArray[np.float64]  # [n], the first metric of each, as accuracy


def by_client(run: Run) -> ByClient:
    """Evaluate the released model for each client, on its own test records.

    InputError: the test records belong to nobody; expected: a natural partition whose test file has the column, too.
    """
    scenario, seed = run.scenario, rng.public_seed(run.scenario.seed, "data")
    dataset = scenario.data.load(seed, Path(), form_of(scenario.client, scenario.model))
    owners = dataset.test_clients
    if owners is None:
        raise InputError(
            f"data.name {scenario.data.name}: the test records belong to no clients; expected: a natural partition, "
            "with its column in the test file, and data.test_is_public: true"
        )
    module = run.model()
    shared = {name: value.detach().numpy() for name, value in module.named_parameters()}
    shapes = {name: shared[name].shape for name in local_names(module, scenario.model.local)}
    own = PersonalLayers(run.files.personal, shapes, scenario.federation.checkpoint_every)
    (inputs, labels), loss = dataset.test(), loss_of(scenario.client, scenario.model)
    order = np.argsort(owners, kind="stable")
    clients, starts = np.unique(owners[order], return_index=True)
    rows = np.split(order, starts[1:])
    with one_thread():
        found = [
            evaluate(
                module,
                {**shared, **((own.of(int(client), len(run.rounds) + 1) or {}) if shapes else {})},
                inputs[each],
                labels[each],
                loss=loss,
            )
            for client, each in zip(clients, rows, strict=True)
        ]
    sizes = np.array([len(each) for each in rows])
    return ByClient(clients, sizes, np.array([each.loss for each in found]), np.array([each.score for each in found]))
