"""A node's own policy: what it refuses, in one line, in a query as in a round."""

import json
import re

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedamp.client import configuration
from fedamp.client.policy import Policy, check
from fedamp.errors import DeploymentError
from fedamp.extensions.evaluation.section import ClientEvaluation
from tests.client.federation import task_of
from tests.deployed import Deployment
from tests.strategies.test_dummies import THREE, played

TASK = task_of()
OTHER = task_of(num_classes=4)


def refused(folder, text: str, task=TASK, hosts: str = "0-9") -> str:
    """Why; empty: it is allowed."""
    file = folder / "policy.yaml"
    file.write_text(text)
    try:
        check(Context(1, 2, {"policy": str(file), "hosts": hosts}, RecordDict(), {}), task.to_json(), False)
    except DeploymentError as error:
        return str(error)
    return ""


def test_only_the_tasks_of_the_policy_are_allowed(tmp_path):
    text = f"tasks: {{digits: {TASK.digest}}}"
    assert refused(tmp_path, text) == ""
    expected = f"this node's policy does not allow the task {OTHER.digest}; expected: digits"
    assert refused(tmp_path, text, OTHER) == expected
    assert refused(tmp_path, "tasks: {}").endswith("expected: none")
    assert refused(tmp_path, "") == refused(tmp_path, "least_people: 1") == ""


def test_a_node_with_too_few_people_takes_no_part(tmp_path):
    assert refused(tmp_path, "least_people: 10") == ""
    expected = "this node's policy expects at least 11 people, and 10 live here"
    assert refused(tmp_path, "least_people: 11") == expected
    assert refused(tmp_path, "least_people: 11", hosts="") == expected.replace(
        "10 live here", "the node's clients are not listed"
    )


def test_records_are_evaluated_by_the_metrics_of_the_policy_alone(tmp_path):
    section = ClientEvaluation(on="clients", metrics=("score", "loss", "calibration"), noise_multiplier=9.0)
    task = TASK.model_copy(update={"evaluation": section})
    assert refused(tmp_path, "metrics: [calibration, loss, score]", task) == refused(tmp_path, "", task) == ""
    why = "this node's policy does not allow the metrics calibration, loss; expected: score"
    assert refused(tmp_path, "metrics: [score]", task) == why
    assert refused(tmp_path, "metrics: []", task).endswith("expected: none")
    assert refused(tmp_path, "metrics: []") == ""  # this task evaluates nothing


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tasks: [digits]", "tasks: Input should be a valid dictionary"),
        ("tasks: {digits: 12}", "tasks.digits: Input should be a valid string"),
        ("tasks: {digits: abc}", "tasks.digits: String should match pattern"),
        (f"tasks: {{../digits: {'a' * 64}}}", "String should match pattern"),
        (f"tasks: {{{'d' * 101}: {'a' * 64}}}", "String should match pattern"),
        ("least_people: 0", "least_people: Input should be greater than or equal to 1"),
        ("least_person: 3", "least_person: no such key"),
        ("tasks: {", "expected"),
        ("- 1", "valid dictionary"),
        ("least_people: 20\nleast_people: 2", "key 'least_people' is duplicated"),
    ],
)
def test_a_policy_that_cannot_be_read_allows_nothing(tmp_path, text, said):
    assert said in refused(tmp_path, text)
    assert "\n" not in refused(tmp_path, text)


def test_a_node_without_an_extension_of_the_server_says_what_to_install():
    told = json.loads(TASK.to_json()) | {"mylab": None}
    with pytest.raises(DeploymentError) as caught:
        configuration.task_of(json.dumps(told))
    assert re.fullmatch(
        r"this node cannot read the task of the run: mylab: no such key; "
        r"expected: on this node the server's version of fedamp, here [\w.]+, and all extensions that it has",
        str(caught.value),
    )


@pytest.mark.parametrize("more", [{"mylab": None}, {}])
def test_a_node_without_a_package_of_the_run_names_the_command_that_installs_it(more):
    """With a key that it cannot read, and with a scheme that only sounds like one of its own."""
    told = json.loads(TASK.to_json()) | more | {"packages": ["mylab-blocks 0.2", f"numpy {np.__version__}"]}
    with pytest.raises(DeploymentError) as caught:
        configuration.task_of(json.dumps(told))
    needed = "on this node the server's mylab-blocks 0.2, if you trust it: pip install mylab-blocks==0.2"
    assert str(caught.value).endswith(f"; expected: {needed}")
    assert "\n" not in str(caught.value)


def test_a_server_cannot_tell_a_node_to_install_what_is_no_name():
    told = json.loads(TASK.to_json()) | {"packages": ["--index-url=http://example.org mylab", "mylab 1; rm -r ~"]}
    with pytest.raises(DeploymentError) as caught:
        configuration.task_of(json.dumps(told))
    assert "pip install" not in str(caught.value)


def test_a_policy_that_is_not_there_allows_nothing(tmp_path):
    with pytest.raises(DeploymentError, match=r"policy\.yaml: No such file or directory; expected: tasks"):
        Policy.read(tmp_path / "policy.yaml")


def test_a_refusal_is_one_line_on_both_sides_by_the_nodes_name(tmp_path, caplog):
    (tmp_path / "policy.yaml").write_text("least_people: 50")
    policy = {"policy": str(tmp_path / "policy.yaml")}
    grid = Deployment({name: {"hosts": units} | (policy if name == "b" else {}) for name, units in THREE.items()})
    _, _, reported = played(True, THREE, "check_in={scheme: all}", "federation.quorum=0.5", grid=grid, rounds=2)
    assert [each[0] for each in reported] == [40, 40]  # of 60
    told = [(each.name, each.getMessage()) for each in caplog.records if "policy" in each.getMessage()]
    assert all("\n" not in line for _, line in told)
    why = "this node's policy expects at least 50 people, and 20 live here"
    assert ("fedamp.client", f"refused: DeploymentError: {why}") in told
    of_server = [line for name, line in told if name == "fedamp.server"]
    assert of_server
    assert all(line.startswith("node b (") and line.endswith(why) for line in of_server)
