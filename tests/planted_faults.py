"""Plant known faults in a copy of the project, one by one, and tell which of them no quick test finds.

    python -m tests.planted_faults                  # all of them, about half an hour on two idle cores
    python -m tests.planted_faults clip noise       # those whose name begins with one of these words
    python -m tests.planted_faults --list

A fault is one edit of one line that makes a guarantee or a number false: a sign, a mask, a denominator, a clip, a
noise, an order, a digest, a filter. First the tests of its room run, then the whole quick suite where these pass. The
exit status is the number of faults that survived. ``test_planted_faults.py`` holds that each fault still fits the code.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
MOST_SURVIVORS = 2
_COPIED = ("fedamp", "tests", "scenarios", "docs", "examples", "benchmarks", "packaging")
_DEADLINE = 1800.0  # seconds of one run of pytest: it only says what hangs


@dataclass(frozen=True)
class Fault:
    """One edit: the only place of ``old`` in a file below ``fedamp/`` becomes ``new``.

    Attributes:
        name: its kind, and what it does.
        tests: files and folders below ``tests/`` that ought to find it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, top: Path) -> None:
        """Write the fault into a copy of the project; ValueError: the code has no such place, or several."""
        file = top / "fedamp" / self.file
        text = file.read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: fedamp/{self.file} has {count} places like {self.old!r}; expected: one")
        file.write_text(text.replace(self.old, self.new))


FAULTS = (
    # Clipping and training on a client.
    Fault(
        "clip: a part's norm leaves out its first parameter",
        "client/clipping.py",
        "_square_norms([flat[name] for name in part], compiled)",
        "_square_norms([flat[name] for name in part[1:] or part], compiled)",
        ("client/test_clipping.py", "client/test_ownership.py"),
    ),
    Fault(
        "clip: an update that is not finite is not failed",
        "client/clipping.py",
        "factors.masked_fill_(failed, 0.0)",
        "factors.masked_fill_(norms.isnan().any(0), 0.0)",
        ("client/test_clipping.py", "client/test_malformed_records.py"),
    ),
    Fault(
        "clip: coordinates are limited as if the norm were twice as large",
        "client/clipping.py",
        "limit = math.floor(clip / unit / math.sqrt(linf_coordinates or 1))",
        "limit = math.floor(2 * clip / unit / math.sqrt(linf_coordinates or 1))",
        ("client/test_clipping.py",),
    ),
    Fault(
        "clip: ghost clipping forgets the input's length in a weight's norm",
        "client/ghost_clipping.py",
        "torch.stack(biases) * self._lengths.square()",
        "torch.stack(biases) * self._lengths",
        ("client/test_ghost_clipping.py",),
    ),
    Fault(
        "mask: dummies are counted by ghost clipping",
        "client/ghost_clipping.py",
        "(cohort.sizes == 0) | (False if counted is None else ~counted)",
        "(cohort.sizes == 0) | (False if counted is None else ~counted & False)",
        ("client/test_ghost_clipping.py", "client/test_worker.py", "client/test_apart.py"),
    ),
    Fault(
        "sign: clients climb with proximal terms",
        "client/training.py",
        "torch._foreach_add(gradients, torch._foreach_sub(values, first), alpha=proximal)",
        "torch._foreach_add(gradients, torch._foreach_sub(first, values), alpha=proximal)",
        ("client/test_training.py",),
    ),
    Fault(
        "sign: control variates of the server push clients away",
        "extensions/scaffold/variates.py",
        "torch.from_numpy(-value)",
        "torch.from_numpy(value)",
        ("extensions/scaffold/test_scaffold.py",),
    ),
    Fault(
        "order: Adam corrects its second moment by the first one's decay",
        "client/training.py",
        "first, second = (1 - beta**self._steps for beta in betas)",
        "second, first = (1 - beta**self._steps for beta in betas)",
        ("client/test_training.py",),
    ),
    Fault(
        "mask: a client that has done its steps moves on",
        "client/training.py",
        "active = (batch.weights > 0).any(1)",
        "active = (batch.weights >= 0).any(1)",
        ("client/test_training.py", "client/test_apart.py"),
    ),
    Fault(
        "denominator: the loss of a sequence is divided by all of its places",
        "federation/losses.py",
        "self._place_losses(outputs, labels).sum(1) / (labels != NOT_COUNTED).sum(1).clamp(min=1)",
        "self._place_losses(outputs, labels).sum(1) / labels.shape[1]",
        ("federation/test_losses.py", "data/test_texts.py"),
    ),
    Fault(
        "filter: an evaluation leaves out half of a unit's records",
        "extensions/evaluation/evaluator.py",
        "if size := int(cohort.sizes[0]):",
        "if size := int(cohort.sizes[0]) // 2:",
        ("extensions/evaluation/test_evaluator.py",),
    ),
    # Submodels.
    Fault(
        "mask: the rest of a dropout submodel is not dealt",
        "models/pieces.py",
        "update.masked_fill_(~own.view(update.shape).to(update.device), 0.0)",
        "update.masked_fill_(own.view(update.shape).to(update.device) & False, 0.0)",
        ("federation/test_submodels.py", "models", "client/test_ownership.py"),
    ),
    Fault(
        "mask: a dealt coordinate is everybody's",
        "models/pieces.py",
        "return [{name: part == j for name, part in by_name.items()} for j in range(self.count)]",
        "return [{name: part >= j for name, part in by_name.items()} for j in range(self.count)]",
        ("models", "client/test_ownership.py"),
    ),
    Fault(
        "filter: frozen arrays are updated",
        "models/pieces.py",
        "return {name: update for name, update in updates.items() if name not in self.frozen}",
        "return {name: update for name, update in updates.items() if name not in self.local}",
        ("models", "client", "federation/test_submodels.py"),
    ),
    # The schedule.
    Fault(
        "order: k of T takes a unit one round too early",
        "federation/check_in.py",
        "integers(rounds - index, len(owed))",
        "integers(max(rounds - index - 1, 1), len(owed))",
        ("federation/test_check_in.py",),
    ),
    Fault(
        "order: a cohort may name a unit twice",
        "federation/check_in.py",
        "(np.diff(cohort) > 0).all()",
        "(np.diff(cohort) >= 0).all()",
        ("federation/test_check_in.py",),
    ),
    Fault(
        "foreign: a scheme is charged as it says once the class that it is fitted to has passed",
        "federation/contracts.py",
        "for each in (kind, type(getattr(scenario, key))) if",
        "for each in (kind,) if",
        ("federation/test_contracts.py",),
    ),
    Fault(
        "foreign: sections of other packages are not looked at",
        "federation/contracts.py",
        "named |= {key: type(section) for key, section in scenario.sections.items()}",
        "named |= {}",
        ("federation/test_contracts.py",),
    ),
    Fault(
        "foreign: a piece may add its part with a factor",
        "models/pieces.py",
        "if len(np.unique(added)) < len(added) or not np.isin(added, given).all():",
        "if len(np.unique(added)) < len(added):",
        ("federation/test_contracts.py",),
    ),
    Fault(
        "foreign: a contract is met after one case of a test with several",
        "testing/contract.py",
        "return sum(math.prod(map(len, values)) for values in marks)",
        "return len(marks)",
        ("testing/test_contract.py",),
    ),
    Fault(
        "denominator: a capped unit is expected as if it had no cap",
        "federation/check_in.py",
        "float(np.minimum(np.arange(rounds + 1), self.at_most) @ self._success_probabilities(rounds))",
        "float(np.arange(rounds + 1) @ self._success_probabilities(rounds))",
        ("federation/test_check_in.py",),
    ),
    Fault(
        "order: spaced rounds are one too near",
        "extensions/correlated/check_in.py",
        "later[index + before * (self.count - 1)]",
        "later[index + before * max(self.count - 2, 0)]",
        ("federation/test_check_in.py",),
    ),
    Fault(
        "charge: batches are charged like Poisson sampling",
        "extensions/batches/check_in.py",
        "return accounting.Repeat(mechanisms.WithoutReplacement(one_round, self.size, self._units), rounds)",
        "return accounting.Repeat(accounting.Poisson(one_round, self.size / self._units), rounds)",
        ("federation/test_check_in.py", "extensions/batches/test_mechanisms.py"),
    ),
    # Noise.
    Fault(
        "noise: half of the deviation is added",
        "noise.py",
        "exact *= deviation\n",
        "exact *= deviation / 2\n",
        ("extensions/correlated", "test_gaussian.py"),
    ),
    Fault(
        "noise: all arrays of a round get the same numbers",
        "noise.py",
        'address = Address(seed, "noise", (round_, index, number))',
        'address = Address(seed, "noise", (round_, 0, number))',
        ("test_gaussian.py",),
    ),
    Fault(
        "noise: banded noise is not scaled by its norm",
        "extensions/correlated/mechanisms.py",
        "deviations = {name: self.norm * deviation for name, deviation in deviation_of.items()}",
        "deviations = {name: deviation for name, deviation in deviation_of.items()}",
        ("extensions/correlated",),
    ),
    Fault(
        "sign: earlier noise is added instead of taken away",
        "extensions/correlated/mechanisms.py",
        "whole[name] -= whole_left",
        "whole[name] += whole_left",
        ("extensions/correlated",),
    ),
    Fault(
        "noise: the clipping norm's change does not reach the noise",
        "strategies/pipeline.py",
        "deviation = [each * state.clip_scale * noise_ratio for each in plan.noise_deviations]",
        "deviation = [each * noise_ratio for each in plan.noise_deviations]",
        ("strategies", "extensions/correlated/test_adaptive.py", "server"),
    ),
    Fault(
        "noise: the same seed serves a second attempt at a round",
        "strategies/pipeline.py",
        "seed = plan.seed if plan.known_seed else rng.seed_from_system()\n        noise, (start, hidden)",
        "seed = plan.seed\n        noise, (start, hidden)",
        ("strategies", "server"),
    ),
    Fault(
        "denominator: the sum is divided by those who reported",
        "strategies/pipeline.py",
        "denominators = {name: plan.parts[part].denominator for name, part in self.model.part_of.items()}",
        "denominators = {name: max(aggregate.reported, 1.0) for name, part in self.model.part_of.items()}",
        ("strategies", "server"),
    ),
    Fault(
        "noise: the adapted clip counts units without noise",
        "federation/norms.py",
        "if private and counts.noisy is None:",
        "if private and counts.noisy is not None:",
        ("federation/test_norms.py", "extensions/correlated/test_adaptive.py"),
    ),
    # The sum on the server.
    Fault(
        "clip: a node may send one unit more than it was asked for",
        "strategies/aggregation.py",
        "if _add_sums(total.sums, answer.sums, units, order.extracted, asked):",
        "if _add_sums(total.sums, answer.sums, units + 1, order.extracted, asked):",
        ("strategies", "engines/test_deployment.py"),
    ),
    Fault(
        "filter: a second answer of one node is added",
        "strategies/aggregation.py",
        "if node in total.nodes:\n",
        "if node in total.nodes and reply.has_error():\n",
        ("strategies",),
    ),
    Fault(
        "order: a node may answer for units of another one",
        "strategies/roster.py",
        'allowed = members(claimed, ((0, self.units - 1),) if permit == "all" else permit)',
        "allowed = members(claimed, ((0, self.units - 1),))",
        ("strategies", "engines/test_deployment.py"),
    ),
    # Secure aggregation.
    Fault(
        "digest: the masks of two nodes do not depend on who they are",
        "extensions/secure/member.py",
        'purpose = b"pair mask " + min(own, other).to_bytes(4) + max(own, other).to_bytes(4)',
        'purpose = b"pair mask "',
        ("extensions/secure",),
    ),
    Fault(
        "filter: a node gives both secrets of a node",
        "extensions/secure/member.py",
        'if self.answered not in (b"", survivors):',
        'if self.answered not in (b"", survivors) and not self.answered:',
        ("extensions/secure",),
    ),
    Fault(
        "threshold: half of the nodes may sign",
        "extensions/secure/protocol.py",
        "return (self.nodes + self.colluding) // 2 + 1",
        "return (self.nodes + self.colluding) // 2",
        ("extensions/secure",),
    ),
    Fault(
        "noise: the nodes share the noise as if all of them were honest",
        "extensions/secure/secure_sums.py",
        "total.noise_surplus = (total.noisy_nodes or self.terms.nodes) / self.terms.honest - 1",
        "total.noise_surplus = (total.noisy_nodes or self.terms.nodes) / self.terms.nodes - 1",
        ("extensions/secure", "strategies"),
    ),
    # Records of people.
    Fault(
        "filter: inputs beyond the range move the private means",
        "extensions/standardise/transform.py",
        "place = np.nan_to_num((inputs - middle) / half, nan=0.0).clip(-1.0, 1.0)",
        "place = np.nan_to_num((inputs - middle) / half, nan=0.0).clip(-2.0, 2.0)",
        ("data/test_transforms.py", "data/test_hostile_records.py", "extensions/standardise"),
    ),
    Fault(
        "filter: people's records stay in the order of the file",
        "data/stored.py",
        'training=training.take(np.argsort(owners, kind="stable")),',
        "training=training.take(np.arange(len(owners))),",
        ("data/test_contract.py", "data/test_stored.py"),
    ),
    Fault(
        "interval: an evaluation's interval is that of one sum",
        "extensions/evaluation/section.py",
        "square, linear, constant = both**2 - 2 * room + drawn, -2 * part * both + 2 * room - drawn, part**2 - room",
        "square, linear, constant = both**2 - room + drawn, -2 * part * both + room - drawn, part**2 - room / 2",
        ("extensions/evaluation/test_evaluation.py",),
    ),
    # Cost.
    Fault(
        "order: moments under hidden masks are those of one order less",
        "accounting/masks.py",
        "exponent = np.minimum((orders - 1) * signal / 2, 300.0)",
        "exponent = np.minimum((orders - 2) * signal / 2, 300.0)",
        ("accounting/test_theorems.py",),
    ),
    Fault(
        "charge: a share of the failure probability is not paid",
        "accounting/sampling.py",
        "spendable = delta - charge - direction.infinite_loss_mass(self.upper)",
        "spendable = delta - direction.infinite_loss_mass(self.upper)",
        ("accounting/test_sampling.py",),
    ),
    Fault(
        "charge: the count of short updates costs a quarter",
        "federation/norms.py",
        "return (accounting.Gaussian(2 * self.noise_multiplier),)",
        "return (accounting.Gaussian(4 * self.noise_multiplier),)",
        ("federation/test_norms.py", "extensions/correlated/test_adaptive.py"),
    ),
    Fault(
        "charge: nodes with agreed terms do not pay for the evaluation",
        "extensions/population/node.py",
        "return Compose((*evaluated, rounds)) if terms.evaluated_at_end else rounds",
        "return rounds",
        ("extensions/population/test_node.py",),
    ),
    # Budgets of people.
    Fault(
        "filter: a person whose price was not computed pays nothing",
        "extensions/population/store.py",
        "needed = np.where(counts > 0, math.inf, 0.0)",
        "needed = np.where(counts > 0, 0.0, 0.0)",
        ("extensions/population",),
    ),
    Fault(
        "filter: a use that is void is charged, and one that is charged is not",
        "extensions/population/store.py",
        'return self.state != "void"',
        'return self.state in ("running", "settled")',
        ("extensions/population",),
    ),
    Fault(
        "digest: the use of a task does not depend on the task",
        "extensions/population/policy.py",
        "if terms_of(task) != agreed.terms or task.digest != agreed.task:",
        "if terms_of(task) != agreed.terms:",
        ("client/test_policy.py", "extensions/population/test_node.py"),
    ),
    # Ledgers and files.
    Fault(
        "digest: the chain leaves out the rounds' cost",
        "accounting/verify.py",
        'excluded = {*last_keys(), "releases", "head", "link"}',
        'excluded = {*last_keys(), "releases", "head", "link", "epsilon_upper"}',
        ("extensions/pages/test_release.py", "runs"),
    ),
    Fault(
        "filter: rounds.jsonl may say half of the ledger's cost",
        "runs/verification.py",
        "math.isclose(said, found, rel_tol=TOLERANCE)):",
        "math.isclose(said, found, rel_tol=0.5)):",
        ("runs",),
    ),
    Fault(
        "digest: a checkpoint of altered arrays is taken",
        "runs/checkpoint.py",
        "if header.arrays_sha256 != digest(arrays):",
        "if len(header.arrays_sha256) != len(digest(arrays)):",
        ("runs", "server"),
    ),
    # Merging.
    Fault(
        "filter: models that share their noise are combined",
        "extensions/merging/weights.py",
        "model.run.ledger.content()) for model in candidates.models])",
        "model.run.ledger.content()) for model in candidates.models[:1]])",
        ("extensions/merging",),
    ),
)


def _copy(fault: Fault, top: Path) -> None:
    for name in _COPIED:
        shutil.copytree(PROJECT / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in PROJECT.iterdir():
        if file.is_file():
            shutil.copy(file, top / file.name)
    fault.apply(top)


def _tests_fail(top: Path, arguments: Sequence[str]) -> bool:
    """Whether pytest finds the fault in a copy. RuntimeError: it did not run."""
    environment = os.environ | {"PYTHONPATH": str(top), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    found = subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True, timeout=_DEADLINE)
    # With several workers, pytest ends with 2 where -x stops it after a failure.
    failed = found.returncode == 1 or (found.returncode == 2 and "\nFAILED " in found.stdout)
    if found.returncode and not failed:
        raise RuntimeError(f"pytest ended with {found.returncode}: {found.stdout[-2000:]}{found.stderr[-2000:]}")
    return failed


def survives(fault: Fault) -> bool:
    """Whether the tests of the fault's room pass in spite of it, and then the whole quick suite."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        top = Path(folder)
        _copy(fault, top)
        room = [f"tests/{name}" for name in fault.tests]
        # The suite of the copy without the test that finds the fault by its text.
        whole = ["tests", "-n", "2", "--dist", "loadfile", "--deselect", "tests/test_planted_faults.py"]
        return not _tests_fail(top, room) and not _tests_fail(top, whole)


def main(words: Sequence[str]) -> int:
    """Plant the faults whose names begin with one of the words (all, without words); returns how many survived."""
    chosen = [fault for fault in FAULTS if not words or fault.name.startswith(tuple(words))]
    if "--list" in words:
        print("\n".join(fault.name for fault in FAULTS))
        return 0
    survivors = []
    for fault in chosen:
        begin = time.monotonic()
        if survives(fault):
            survivors.append(fault.name)
        said = "SURVIVED" if fault.name in survivors[-1:] else "found"
        print(f"{said:8} {time.monotonic() - begin:5.0f} s  {fault.name}", flush=True)
    print(f"{len(survivors)} of {len(chosen)} faults survived; at most {MOST_SURVIVORS} may")
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > MOST_SURVIVORS)
