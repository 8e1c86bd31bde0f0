"""How little a command imports and computes before it answers: by counts, because no outcome may depend on seconds."""

import copy
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.speed.start import call, modules, packages
from fedamp.accounting import Allocation, Gaussian, arithmetic, search
from fedamp.accounting.sampling import PRECISION
from fedamp.federation import kept_answers
from fedamp.federation.plan import make_plan
from fedamp.federation.scenario import Privacy
from tests.federations import small

LARGE = {"torch", "flwr", "ray", "numba", "matplotlib", "datasets", "transformers", "sklearn", "pandas", "pyarrow"}


@pytest.mark.parametrize(
    ("name", "needed", "most"),
    [("--help", set(), 60), ("completion", {"numpy"}, 110), ("explain privacy.clip", {"numpy"}, 110)],
)
def test_words_about_commands_and_keys_need_no_accountant(tmp_path, name, needed, most):
    found = modules(name, tmp_path)
    assert needed <= set(packages(found))
    assert not LARGE & set(packages(found))
    assert not {each for each in found if each.startswith(("fedamp.accounting", "fedamp.server.loop", "scipy.special"))}
    assert sum(each.startswith("fedamp") for each in found) <= most


@pytest.mark.parametrize("status", [None, 3])
def test_a_process_is_left_with_its_status_and_its_modules_whole(status):
    """Threads and functions of atexit end first. A profiler, which writes at the end, is not cut off."""
    program = f"""
import atexit, sys, threading
from fedamp.base.start import leave_process

class Module:
    def __del__(self):
        print("taken apart")

module, end = Module(), SystemExit({status})
sys.setprofile(lambda *_: None)
leave_process(end)
sys.setprofile(None)
atexit.register(print, "function")
threading.Timer(0.2, print, ["thread"]).start()
print("before")
leave_process(end)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout.split()) == (status or 0, ["before", "thread", "function"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needed"),
    [("privacy digits", set()), ("check digits", {"torch", "flwr"}), ("run digits", {"torch", "flwr"})],
)
def test_what_was_asked_before_compiles_nothing(tmp_path, name, needed):
    """Neither numba nor a part of scipy that computes is imported: all answers are kept."""
    for _ in range(2):  # the advice of a check has a limit of time, and the second call may add to it
        call(name, tmp_path, WHOLE="1")
    found = modules(name, tmp_path)
    assert LARGE & set(packages(found)) == needed
    assert not {each for each in found if each.startswith(("scipy.special", "scipy.linalg", "scipy.stats"))}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privacy digits", "check digits", "run digits"])
def test_a_first_answer_compiles_no_inner_loop(tmp_path, name):
    """Importing numba costs as much as a tenth of an import of torch, and compiling several; NumPy does little work."""
    assert "numba" not in modules(name, tmp_path)


def asked_of_loops():
    """Questions to each inner loop that is done without numba at first, and the places of what it fills."""
    rng, points = np.random.default_rng(3), np.linspace(-3.0, 2.0, 400)
    mass_out = np.exp(-(points**2))
    mass_out /= mass_out.sum()
    sides = points, mass_out * np.exp(points), mass_out
    cells, bounds = np.full((2, 301), 0.125), np.append(np.linspace(-5, 3, 300), np.inf)
    shorter = [each[:170] for each in sides]
    ratios, tails = np.exp(rng.standard_normal((1500, 30))), rng.random((2, 5))
    yield "lattice_below", (*sides, float(points[7]), 0.05, -70, 240), ()
    yield "hockey_stick_profile", (*sides[:2], 0.1, *np.empty((2, 400))), (3, 4)
    yield "sum_pairs", (*sides, *shorter, bounds, 0.3, 0.7, 0.1, False, *cells.copy()), (11, 12)
    yield "sum_pairs", (*sides, *sides, bounds, 0.5, 0.5, 0.1, True, *cells.copy()), (11, 12)
    means = ratios, 0.1, tails, np.array([12, 30]), 0, np.empty((1500, 2)), np.empty((7, 128))
    yield "symmetric_means", means, (5,)
    yield "symmetric_means", (*means[:2], tails[:1], np.array([30]), 2, np.empty((1500, 1)), means[-1]), (5,)
    one_each = np.tile(np.eye(5), (2, 1)), np.repeat([12, 30], 5), 0, np.empty((1500, 10)), means[-1]
    yield "symmetric_means", (*means[:2], *one_each), (5,)


@pytest.mark.slow
def test_python_and_numpy_do_little_work_with_the_bits_of_compiled_code():
    for name, question, filled in asked_of_loops():
        loop, again = getattr(arithmetic, name), copy.deepcopy(question)
        found = loop(*question)
        expected = arithmetic.compiled_later()(loop.__wrapped__)()(*again)
        assert found is expected is None or np.array_equal(found, expected)
        assert all(np.array_equal(question[i], again[i]) for i in filled)


def test_inner_loops_are_compiled_once_there_is_much_work(monkeypatch):
    """A call that is a sixteenth of what is done without tells that there is more to come."""
    made = []

    def compiled_later(**options):
        made.append(options)
        return lambda function: lambda: lambda values: ("compiled", len(values))

    monkeypatch.setattr(arithmetic, "compiled_later", compiled_later)

    def loop(values):
        return "by itself", len(values)

    for plain, name in ((None, "by itself"), (lambda values: ("plain", len(values)), "plain")):
        little = arithmetic.compiled(33, plain)(loop)
        assert [little(np.zeros(2))[0] for _ in range(17)] == [name] * 16 + ["compiled"]
        assert arithmetic.compiled(33, plain)(loop)(np.zeros(3)) == ("compiled", 3)


def test_a_scenario_has_the_default_precision_of_the_accountant():
    """The scenario repeats the number, because reading one must not import the accountant."""
    assert Privacy.model_fields["precision"].default == PRECISION


def test_the_guarantee_needs_no_curve_over_the_rounds(monkeypatch):
    """Where the budget pays for all rounds: a run begins to train, and a check answers, before there is a curve."""
    monkeypatch.setattr(kept_answers, "epsilon_over_rounds", None)
    charge = make_plan(small("privacy={clip: 0.5, epsilon: 4, precision: 0.05}"), 60).charge
    charge.compute_now()
    assert charge.affordable_rounds == 8
    assert charge.guaranteed_epsilon == charge.planned_epsilon
    monkeypatch.undo()
    assert charge.epsilon_by_round[-1] == charge.planned_epsilon.upper


def test_rounds_share_draws_and_have_few_candidates(monkeypatch):
    """A sum over blocks of rounds; the draws follow from fixed seeds."""
    work, certify = [], search.certify_deltas

    def counted(proposal, above, below, draws, failure):
        work.append((above.size, draws * proposal.run.factors[0].rounds))
        return certify(proposal, above, below, draws, failure)

    monkeypatch.setattr(search, "certify_deltas", counted)
    search._over_rounds.cache_clear()
    search.epsilon_over_rounds(Allocation(Gaussian(1.2), 4, 10), 1e-5)
    candidates, ratios = map(sum, zip(*work, strict=True))
    assert candidates == 9 * 11
    assert ratios < 1_000_000


def test_beyond_round_100_few_rounds_are_sampled():
    rounds = tuple(range(1, 1001))
    places = search._rounds_to_sweep(rounds)
    assert places[:100] == list(range(100))
    assert places[-1] == 999
    assert len(places) < 400
    assert all(rounds[after] <= 1.011 * rounds[before] for before, after in pairwise(places[99:]))


@pytest.mark.parametrize(
    "changes",
    [
        ("check_in={scheme: poisson, rate: 0.2}",),
        ("check_in={scheme: all}",),
        ("check_in={scheme: spaced, k: 2, gap: 3}",),
        ("submodels={scheme: disjoint, count: 2}", "model={name: mlp, hidden: [4]}"),
        ("evaluation={on: clients, noise_multiplier: 20}",),
        ("privacy.group_size=2", "check_in={scheme: poisson, rate: 0.2}"),
    ],
)
def test_the_curve_ends_at_the_cost_of_all_rounds(changes):
    charge = make_plan(small(*changes), 60).charge
    if charge._steps is not None:
        assert charge.epsilon_by_round[-1] == charge.planned_epsilon.upper == charge.guaranteed_epsilon.upper
    limited = make_plan(small(*changes, f"privacy.epsilon={charge.epsilon_by_round[3]}"), 60).charge
    assert limited.affordable_rounds < 8
    assert limited.guaranteed_epsilon.upper <= charge.epsilon_by_round[3]
