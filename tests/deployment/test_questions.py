"""A deployment that answers questions: from keys to a certificate, with nodes as real processes."""

import json
import math

import numpy as np
import pytest
import yaml

from fedamp.extensions.statistics.answers import released_answers
from tests.deployment.machines import NODES, Machines
from tests.deployment.test_processes import CLIENTS, play_to_end, write_scenario


@pytest.mark.slow
def test_questions_to_three_nodes_of_a_deployment_from_keys_to_a_certificate(machines: Machines):
    raw = write_scenario(machines)
    kept = {key: raw[key] for key in ("name", "seed", "data", "federation") if key in raw}
    kept["data"] |= {"features": "y", "label": "y"}
    digits = {"ask": "table", "axes": [{"column": "y", "words": ["0", "1", "2"]}], "records": 5}
    questions = {"people": {"ask": "count"}, "digits": digits}
    kept |= {"privacy": {"noise_multiplier": 1.0, "delta": 1e-3}, "questions": {"ask": questions}}
    (machines.server / "hospitals.yaml").write_text(yaml.safe_dump(kept))
    play_to_end(machines, 300)
    run = machines.server / "run"
    answers = released_answers(run)
    people = answers.answer("people").number("count")
    assert abs(people.value - CLIENTS) <= 5 * answers.noise_deviation * math.sqrt(2)
    labels = [np.load(machines.folder / name / "data" / "train.npz")["y"] for name in NODES]
    assert sum(map(len, labels)) <= 5 * CLIENTS or answers.answer("digits").number("others").value > 0
    told = machines.run("fedamp statistics run --json && fedamp verify run --json")
    assert '"questions"' in told
    told = machines.run("fedamp release run --key release.key --out bundle && fedamp verify bundle --json")
    assert {check["verdict"] for check in json.loads(told[told.index("{\n") :])["checks"]} <= {"pass", "caution"}
