"""Questions to people on nodes: sealed messages, secure aggregation with noise of the nodes."""

import json
import math

from fedamp.extensions.statistics.section import ARRAY, MODEL
from tests.extensions.secure.consortium import Consortium
from tests.extensions.statistics.test_statistics import answers_of
from tests.extensions.statistics.ward import QUESTIONS, patients, scenario, truth, write_ward

NOISE = 0.5


def test_nodes_with_an_agreement_add_the_noise_and_every_interval_knows_its_surplus(tmp_path):
    """Twenty people on five nodes: two more nodes than honest ones are needed add noise, so it is more than charged."""
    rows = patients(20)
    folder = write_ward(tmp_path / "ward", rows)
    asked = {name: QUESTIONS[name] for name in ("patients", "age", "where")}
    cells = scenario(folder, asked).questions.number_of_cells
    data = {"name": "csv", "path": str(folder), "features": ["age"], "label": "age"}
    data |= {"partition": {"scheme": "natural", "column": "patient"}}
    overrides = {
        "data": data,
        "questions": {"ask": asked, "least": 0},
        "model": {"name": MODEL, "options": {"cells": cells}},
        "rounds": 1,
        "check_in": {"scheme": "all"},
        "client": {"loss": "mean-squared-error"},
        "server": {"learning_rate": 1.0, "momentum": 0.0},
        "privacy": {"clip": 1, "noise_multiplier": NOISE, "delta": 1e-3},
    }
    (tmp_path / "nodes").mkdir()
    nodes = Consortium(tmp_path / "nodes", *(f"{key}={json.dumps(value)}" for key, value in overrides.items()))
    strategy = nodes.play()
    assert {exchange for exchange, _, _ in nodes.seen} >= {"masked", "unmask"}
    plan = nodes.prepared.plan
    deviation = plan.noise_deviations[0] * math.sqrt(5 / plan.agreed_terms.honest)
    assert deviation > NOISE
    vector = strategy.state.parameters[ARRAY].astype(float) * plan.units
    found = answers_of(plan.scenario.questions, vector, deviation)
    misses = [
        (name, number)
        for name, numbers in truth(rows).items()
        for number, right in numbers.items()
        if name in asked and not found[name][number].lower <= right <= found[name][number].upper
    ]
    # The nodes' noise is theirs: of eight numbers at 95 %, more than four misses have a probability of 2e-5.
    assert len(misses) <= 4
