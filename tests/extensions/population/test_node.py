"""A node's own budget: its people pay for a task before the node answers, once, or the node takes no part."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fedamp.accounting import Gaussian, Group, Poisson, Repeat
from fedamp.accounting.search import Budget
from fedamp.client import policy
from fedamp.client.policy import check
from fedamp.client.task import ClientTask
from fedamp.errors import DeploymentError
from fedamp.extensions.population import node as budget
from fedamp.extensions.population import store
from fedamp.extensions.population.policy import use_of
from fedamp.extensions.population.store import Population
from fedamp.extensions.secure.terms import AgreedTerms
from fedamp.server.loop import ask
from fedamp.server.setup import prepare
from tests.client.federation import task_of
from tests.deployed import Deployment
from tests.extensions.secure.consortium import FIVE, SECURE, Consortium
from tests.federations import hosting, small
from tests.strategies.test_dummies import THREE
from tests.tools import killed_before_line

EPSILON, DELTA = 1.5, 1e-5
NOISE = 4.0
ONCE = Repeat(Poisson(Gaussian(NOISE), 0.5), 2)  # what the runs below cost a person
SHARE = Budget(EPSILON, DELTA).share_of_use(ONCE)  # 28.5 %: three runs fit, a fourth does not
TASK = task_of(run="a run", charge=ONCE.to_json())


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def people(tmp_path):
    """The population of units 0 to 39, and a policy beside it."""
    (tmp_path / "policy.yaml").write_text("population: people.db")
    return Population.new(tmp_path / "people.db", [(str(unit), str(unit)) for unit in range(40)], EPSILON, DELTA)


def spent(people, person=25):
    return float(people.read().spent()[person])


def node(people, **configured) -> Context:
    given = {"policy": str(people.file.parent / "policy.yaml"), "hosts": "20-29"} | configured
    return Context(1, 2, given, RecordDict(), {})


def refused(people, task: ClientTask = TASK, **configured) -> str:
    try:
        check(node(people, **configured), task.to_json(), False)
    except DeploymentError as error:
        return str(error).replace("\n", "a second line: ")
    return ""


def play(grid: Deployment, seed: int) -> list[int]:
    """A run of two rounds with its own secret seed; how many units reported in each."""
    asked = ("rounds=2", hosting(THREE), "check_in={scheme: poisson, rate: 0.5}", "known_seed=false")
    noise = (f"privacy.noise_multiplier={NOISE}", "privacy.epsilon=null", "federation.quorum=0.1")
    prepared = prepare(small(*asked, *noise), seed)
    strategy, reported = prepared.strategy(prepared.state), []
    for round_ in (1, 2):
        aggregate = ask(strategy, grid, round_)
        strategy.release(round_, aggregate)
        reported.append(set(aggregate.nodes))
    return reported


def test_runs_are_charged_to_all_people_of_a_node_until_one_does_not_fit(people, caplog):
    own = {"policy": str(people.file.parent / "policy.yaml")}
    for number in range(4):
        caplog.clear()
        nodes = {name: {"hosts": units} | (own if name == "b" else {}) for name, units in THREE.items()}
        rounds = play(grid := Deployment(nodes), 100 + number)
        there = [{grid.names[each] for each in found} for found in rounds]
        assert there == [{"a", "b", "c"} if number < 3 else {"a", "c"}] * 2
        contents = people.read()
        assert len(contents.uses) == min(number + 1, 3)
        # Who is asked is hidden, so all of the node's people pay, and nobody else.
        assert contents.spent() == pytest.approx([0] * 20 + [SHARE * len(contents.uses)] * 20)
    told = [(each.name, each.getMessage()) for each in caplog.records if "budget" in each.getMessage()]
    why = "this node's people have not enough of their budget left for this task; the node's log says who"
    assert any(name == "fedamp.client" and "the person of unit 20 (and 19 more) has" in line for name, line in told)
    of_server = [line for name, line in told if name == "fedamp.server"]
    assert of_server
    assert all(line.startswith("node b (") and line.endswith(why) for line in of_server)


def test_a_node_that_is_started_again_pays_no_second_time(people):
    assert refused(people) == refused(people) == ""  # a new context each: nothing is remembered in memory
    assert spent(people) == pytest.approx(SHARE)
    assert refused(people, TASK.model_copy(update={"run": "another run"})) == ""
    assert spent(people) == pytest.approx(2 * SHARE)
    dearer = Repeat(ONCE, 2)
    assert refused(people, TASK.model_copy(update={"charge": dearer.to_json()})).startswith("this node's people have")


def test_a_person_who_leaves_stops_the_node_until_its_list_of_clients_changes(people, caplog):
    context = node(people)
    check(context, TASK.to_json(), False)
    people.leave("3")  # who lives elsewhere
    check(context, TASK.to_json(), False)
    assert spent(people) == pytest.approx(SHARE)
    people.leave("25")
    why = "the list of this node's clients must change first; the node's log says why"
    with pytest.raises(DeploymentError, match=why):
        check(context, TASK.to_json(), False)
    assert "the people of units 25 have left" in caplog.text
    assert refused(people, TASK.model_copy(update={"run": "another run"})) == why
    assert refused(people, hosts="20-24,26-29") == ""
    assert spent(people) == pytest.approx(SHARE)


def test_the_doctor_and_the_node_read_the_population_beside_the_policy(people, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert refused(people) == ""
    fine, found = policy.policy_key("population").examine("people.db", people.file.parent)
    assert (fine, found.partition(";")[0]) == (True, "40 people")


def test_two_messages_at_once_pay_once(people):
    with ThreadPoolExecutor(4) as pool:
        before = os.umask(0o022)
        os.umask(before)
        assert list(pool.map(lambda _: refused(people), range(8))) == [""] * 8
        assert os.umask(before) == before, "the umask is one for all threads"
    assert spent(people) == pytest.approx(SHARE)


def killed_at(step, call) -> bool:
    """Run a call in a child that is killed before so many lines of the budget and of the store; whether it was."""
    counted = {budget.__file__, policy.__file__, store.__file__}
    return killed_before_line(step, call, lambda code: code.co_filename in counted)


def test_killed_between_any_two_steps_nothing_is_spent_twice_or_forgotten(people):
    killed, step, seen = True, 1, set()
    for number in range(100):
        task = TASK.model_copy(update={"run": f"run {number}", "charge": Gaussian(400.0).to_json()})
        before, once = spent(people), Budget(EPSILON, DELTA).share_of_use(Gaussian(400.0))
        killed = killed_at(step, lambda task=task: refused(people, task))
        charged = round((spent(people) - before) / once)
        seen.add(charged)
        assert refused(people, task) == ""  # the same message again
        assert spent(people) == pytest.approx(before + once)
        step += max(1, step // 3)
        if not killed:
            break
    assert not killed
    assert seen == {0, 1}


def test_a_task_that_was_paid_for_brings_no_accountant(people):
    assert refused(people) == ""
    program = f"""if True:
        import sys
        from flwr.app import ConfigRecord, Context, RecordDict
        from fedamp.client.policy import check
        paid = {{"use": {use_of(TASK, "")!r}, "events": {len(people.read().links)}}}
        state = RecordDict({{"population": ConfigRecord(paid)}})
        check(Context(1, 2, {node(people).node_config!r}, state, {{}}), {TASK.to_json()!r}, False)
        print({{"fedamp.accounting.mechanism", "numba", "torch"}} & set(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_is_remembered_is_of_this_run_alone(people):
    context = node(people)
    check(context, TASK.to_json(), False)
    check(context, TASK.model_copy(update={"run": "the next"}).to_json(), False)
    assert spent(people) == pytest.approx(2 * SHARE)
    assert isinstance(context.state["population"], ConfigRecord)


def test_several_units_of_a_person_pay_as_a_group(tmp_path):
    (tmp_path / "policy.yaml").write_text("population: people.db\nleast_people: 6")
    pairs = [(str(unit), f"person {unit // 2}") for unit in range(20, 30)]
    people = Population.new(tmp_path / "people.db", pairs, 8.0, DELTA)
    assert refused(people) == "this node's policy expects at least 6 people, and 5 live here"
    (tmp_path / "policy.yaml").write_text("population: people.db\nleast_people: 5")
    assert refused(people) == ""
    pair = Budget(8.0, DELTA).share_of_use(Group(ONCE, 2))  # any bound of a pair: ours uses an exact rule
    assert Budget(8.0, DELTA).share_of_use(ONCE) < spent(people, 0) <= pair


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": ""}, "runs with a known seed cannot be charged to this node's people; use a secret seed"),
        ({"unit": "sample"}, "this node's people pay by client; expected: privacy.unit: client"),
        ({"charge": None}, "the server does not say what its task costs; expected: noise, and federation.hosts"),
        ({"charge": {"type": "nothing"}}, "the cost of the server's task cannot be read ("),
    ],
)
def test_what_cannot_be_charged_is_refused_in_one_line(people, change, why):
    assert refused(people, TASK.model_copy(update=change)).startswith(why)
    assert spent(people) == 0


def test_a_population_that_is_not_as_it_was_is_refused_and_no_path_is_told(people, caplog):
    why = "this node's population cannot be charged; the node's log says why"
    assert refused(people, hosts="35-44") == why  # units 40 to 44 are on no list
    assert "unit '40' (and 4 more) is not on its list" in caplog.text
    assert refused(people, hosts="") == "this node's policy has a population, and the node's clients are not listed"
    people.file.write_bytes(b"no database")
    assert refused(people) == why
    people.file.unlink()
    assert refused(people) == why
    assert str(people.file) in caplog.text


def test_a_task_has_the_charge_of_its_run(tmp_path):
    """The runs above are charged what the accountant says of them: here for other schemes, against their plans."""
    for scheme in ("{scheme: balanced, k: 3}", "{scheme: all}", "{scheme: poisson, rate: 0.2}"):
        prepared = prepare(small("rounds=4", hosting(THREE), f"check_in={scheme}"))
        told, planned = budget.cost(prepared.task), prepared.plan.charge.planned_epsilon
        assert told.epsilon(DELTA).upper == pytest.approx(planned.upper, rel=1e-2)  # the plan pays for its sampler
    assert prepare(small("rounds=4")).task.charge is None


# Secure aggregation: the node's own agreement says it all.

CHARGED = {"check_in", "count_noise", "most_check_ins", "noise_multipliers", "rounds"}
CHARGED |= {"evaluated_at_end", "evaluation_noise"}
OTHER_TERMS = {"bits", "colluding", "dropped", "nodes", "units"}  # they say how much noise a node adds, or nothing


def test_each_of_the_terms_is_charged_or_costs_nothing():
    assert set(AgreedTerms.model_fields) == CHARGED | OTHER_TERMS


@pytest.mark.parametrize(
    ("overrides", "exact"),
    [
        (("check_in={scheme: balanced, k: 3}",), True),
        (("check_in={scheme: balanced, k: 3, drawn_by: node}",), True),
        (("check_in={scheme: poisson, rate: 0.4, drawn_by: node}",), True),
        (("check_in={scheme: poisson, rate: 0.4}",), True),
        (("privacy.clip={initial: 0.5, noise_multiplier: 3.0}",), True),
        (("evaluation={on: clients, noise_multiplier: 3}",), True),
        (("evaluation={on: clients, noise_multiplier: 3, every: 1}", "check_in={scheme: poisson, rate: 0.4}"), True),
        (("model={name: mlp, hidden: [12]}", "submodels={scheme: disjoint, count: 3}"), False),
    ],
)
def test_the_terms_cost_what_the_plan_says_of_the_server_or_more(overrides, exact):
    plan = prepare(small("data={name: digits, clients: 20}", "rounds=6", hosting(FIVE), SECURE, *overrides)).plan
    server = plan.charge.server_mechanism.epsilon(DELTA)
    ours = budget.cost_of(plan.agreed_terms).epsilon(DELTA)
    assert ours.upper >= server.lower
    if exact:
        assert ours.upper == pytest.approx(server.upper, rel=1e-3)  # the width that a bracket may have


def test_a_node_pays_for_its_agreement_once_whatever_the_server_calls_the_run(tmp_path):
    consortium = Consortium(tmp_path, "privacy.noise_multiplier=20.0", "rounds=4")
    people = Population.new(tmp_path / "people.db", [(str(unit), str(unit)) for unit in range(20)], EPSILON, DELTA)
    (tmp_path / "policy.yaml").write_text("population: people.db")
    [one] = [context for node, context in consortium.contexts.items() if consortium.names[node] == "site2"]
    one.node_config["policy"] = str(tmp_path / "policy.yaml")
    consortium.play(rounds=1)
    paid = spent(people, 8)
    assert paid == pytest.approx(Budget(EPSILON, DELTA).share_of_use(Repeat(Gaussian(20.0), 3)), rel=1e-6)
    assert spent(people, 0) == 0  # of another node
    files = {key: one.node_config[key] for key in ("agreement", "key", "state")} | {"hosts": "8-11"}
    task = consortium.prepared.task.model_copy(update={"run": "under another name"})
    assert refused(people, task, **files) == ""
    cheaper = task.model_copy(update={"terms": replace_terms(task.terms, most_check_ins=1)})
    why = "the server's terms, or its task, are not those of this node's agreement"
    assert refused(people, cheaper, **files) == why
    steeper = task.client.model_copy(update={"learning_rate": 9.0})  # other updates of the same people, at equal terms
    assert refused(people, task.model_copy(update={"client": steeper}), **files) == why
    assert spent(people, 8) == paid


def replace_terms(terms: AgreedTerms, **changes) -> AgreedTerms:
    return terms.model_copy(update=changes)
