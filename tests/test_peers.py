"""The benchmark of other tools: what it stores, what it shows, and what all of them are asked. None is installed."""

import json
import statistics
from dataclasses import asdict, replace

import dp_accounting
import numpy as np
import pytest
import torch

from benchmarks.peers import bench, table
from benchmarks.peers.in_flower import local_update
from benchmarks.peers.work import Job

RUN = bench.Run("jax-banded", "2.0", 1.0, 7, 1, False, 2.4, 4, 0.99, 1.01, 46672, 0.81, 0.79, 5.0)
IID = bench.FEDERATIONS["iid"]
JOB = Job("fedavg", 1.0, 1e-5, None, 5, 3, "", "", 4, 60, 0.05, 2, 0.1, 0.1, 0.5, 0.9)


def test_a_row_has_the_mean_and_the_deviation_of_the_test_runs(monkeypatch):
    monkeypatch.setattr(table, "ours", lambda task: [])
    accuracies = [0.81, 0.83, 0.82]
    runs = [replace(RUN, seed=seed, accuracy=value) for seed, value in enumerate(accuracies)]
    runs += [replace(RUN, tuning=True, accuracy=0.1), replace(RUN, task="sections", accuracy=0.1)]
    runs.append(replace(RUN, epsilon=4.0, bands=5, accuracy=0.84))
    (row,) = table.rows(runs)
    mean, deviation = 100 * statistics.mean(accuracies), 100 * statistics.stdev(accuracies)
    assert f"| jax_privacy 2.0 | DP-BandMF of clients, 4 or 5 bands, cyclic Poisson sampling |  | {mean:.1f} ± " in row
    assert f"± {deviation:.1f} (seeds: 3) | 84.0 (seeds: 1) | 0.99 | 1.01 | 2.4 | 46.7 kB | 5.0 |" in row


def test_fedamps_rows_come_from_the_stored_federations(tmp_path):
    line = {"task": "iid", "scheme": "balanced", "epsilon": 1.0, "rate": 8, "seed": 1, "tuning": False}
    line |= {"noise_multiplier": 1.62, "score": 0.824, "last": 0.8, "seconds": 1.2}
    others = ({"tuning": True}, {"epsilon": 4.0}, {"task": "dirichlet"})
    file = tmp_path / "federations.jsonl"
    file.write_text("".join(json.dumps(line | change) + "\n" for change in ({}, *others)))
    (row,) = table.ours("iid", file)
    assert row.startswith("| fedamp | k of T |  | 82.4 (seeds: 1) | 82.4 (seeds: 1) |  | 1 | 1.62 | ")


def test_a_stored_run_is_not_made_again(tmp_path, monkeypatch):
    asked = []

    def ask(self, *about):
        asked.append(about)
        return {name: value for name, value in asdict(RUN).items() if name in said}

    said = ("version", "noise_multiplier", "bands", "own_epsilon", "bytes", "accuracy", "last", "seconds")
    monkeypatch.setattr(bench.Bench, "ask", ask)
    file = tmp_path / "peers.jsonl"
    first = bench.Bench(file, tmp_path, IID).run("jax-banded", 1.0, 7, 1, False)
    second = bench.Bench(file, tmp_path, IID)
    assert second.run("jax-banded", 1.0, 7, 1, False) == first
    assert asked == [("jax-banded", 1.0, 7, 1, False)]
    second.run("jax-banded", 1.0, 7, 1, True)
    other = bench.Bench(file, tmp_path, bench.FEDERATIONS["sections"]).run("jax-banded", 1.0, 7, 1, False)
    assert (first.task, other.task) == ("iid", "sections")
    assert len(asked) == len(file.read_text().splitlines()) == 3


def test_the_rate_is_searched_from_the_best_of_the_nearest_budget(tmp_path, monkeypatch):
    asked = []

    def run(self, peer, epsilon, rate, seed, tuning):
        asked.append(rate)
        self.runs.append(replace(RUN, epsilon=epsilon, rate=rate, tuning=True, accuracy=-((rate - 5) ** 2)))
        return self.runs[-1]

    monkeypatch.setattr(bench.Bench, "run", run)
    searching = bench.Bench(tmp_path / "none.jsonl", tmp_path, IID)
    assert searching.best_rate("jax-banded", 1.0) == 5
    asked.clear()
    assert searching.best_rate("jax-banded", 4.0) == 5
    assert sorted(asked) == [4, 5, 6]


@pytest.mark.parametrize(("bands", "rate", "rounds"), [(1, 0.05, 60), (4, 0.2, 15)])
def test_banded_noise_is_charged_as_sampling_in_groups(bands, rate, rounds):
    accountant = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    release = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(2.0))
    accountant.compose(release, rounds)
    # Google's accountant rounds each loss up to a grid of 1e-4.
    assert bench.charged(IID, "jax-banded", 2.0, bands) == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-3)


def test_a_tool_in_turn_is_charged_for_what_a_person_moves():
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(8.0), 3)  # three releases, which a person moves by 1 each
    found = bench.charged(IID, "pfl-banded", 8.0, 20, 3**0.5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-3)


def test_records_with_owners_stay_with_them_and_others_are_padded(tmp_path):
    np.savez(tmp_path / "train.npz", x=np.arange(1, 6).reshape(5, 1), y=np.arange(1, 6), owner=[2, 0, 2, 3, 2])
    found, labels = replace(JOB, data=str(tmp_path)).partition()
    assert labels.tolist() == [[2, -1, -1], [-1, -1, -1], [1, 3, 5], [4, -1, -1]]
    assert np.array_equal(found[..., 0], np.maximum(labels, 0))


def test_padding_changes_no_update():
    inputs, labels = torch.randn(3, 6), torch.tensor([0, 2, 1])
    model = {"output.weight": torch.randn(4, 6), "output.bias": torch.randn(4)}
    padded = torch.cat([inputs, torch.zeros(2, 6)]), torch.cat([labels, torch.tensor([-1, -1])])
    shorter, longer = (local_update(JOB, model, *each) for each in ((inputs, labels), padded))
    slope = torch.softmax(inputs @ model["output.weight"].T + model["output.bias"], 1)
    slope[range(3), labels] -= 1
    # One step by hand: the mean over the client's own three records.
    once = local_update(replace(JOB, steps=1), model, *padded)
    torch.testing.assert_close(once["output.weight"], -JOB.local_rate * slope.T @ inputs / 3)
    torch.testing.assert_close(longer, shorter)
