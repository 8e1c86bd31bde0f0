"""Numbers of a stranger's scenario that would take the memory: refused in one line that names the key and the limit.

Under a limit on memory, so that an array that should not be made is a MemoryError here, and no machine is slow.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOM = 3 << 30  # bytes beyond what the process has before a command
SECONDS = 120  # of processor time: what does not end is killed
SCENARIO = {
    "name": "huge",
    "data": {"name": "synthetic", "clients": 20, "records_per_client": 2, "features": 4, "classes": 2},
    "model": {"name": "logistic"},
    "rounds": 4,
    "check_in": {"scheme": "balanced", "k": 2},
    "privacy": {"clip": 1, "noise_multiplier": 1, "precision": 0.05},
    "engine": {"kind": "serial"},
}
MLP = "model={name: mlp, hidden: [8]}"
HUGE, TENS = 10**12, 10**7
# Overrides, with a huge number in the place of N, and what the line names. None: it is fine, or refused later.
REFUSED = {
    "data.clients=N": "data.clients=N: got N; expected: an integer >= 1 and <= 1e+08",
    "data={name: external, clients: N};model={name: external}": "data.clients: got N; expected: an integer >= 1 and <=",
    "privacy.unit=sample;data.clients=10000;data.records_per_client=100000": "data: 1,000,000,000 samples; expected:",
    "data.features=N": "features times classes are 2,000,000,000,000 numbers; expected: at most 536,870,912",
    "data.shape=[N, N, N]": "numbers; expected: at most 536,870,912",
    "data.test_records=N": "features times test_records are",
    "data.records_per_client=N": "features times records_per_client are",
    "data.classes=N": "data.classes=N: got N; expected: an integer >= 2 and <= 1.67772e+07",
    "data={name: npz, path: ., clients: 9, classes: N}": "data.classes: got N; expected: an integer >= 1 and <= 1.6",
    "model={name: mlp, hidden: [N]}": "model.hidden: got N; expected: a list of an integer >= 1 and <= 2.6",
    "model={name: cnn, channels: [N]}": "model.channels: got N; expected: a list of an integer >= 1 and <= 2.6",
    "model.groups=N": "got N; expected: an integer >= 1 and <= 2.6",
    "model={name: lstm, vocabulary: N}": "model.vocabulary: got N; expected: an integer >= 2 and <= 1.6",
    "model={name: lstm, vocabulary: 9, embedding: N}": "model.embedding: got N; expected: an integer >= 1 and <= 2.6",
    "rounds=N": "got N; expected: an integer >= 1 and <= 1e+06",
    "privacy.canaries=N": "got N; expected: an integer >= 0 and <= 1e+06",
    "privacy.noise_cohort=N": "privacy.noise_cohort.size: got N; expected: an integer >= 1 and <= 1e+08",
    "privacy.group_size=N": "got N; expected: an integer >= 1 and <= 1000",
    "aggregation={scheme: secure, nodes: N}": "aggregation.nodes: got N; expected: auto or an integer >= 1 and <= 1e",
    "engine.workers=N": "got N; expected: an integer >= 1 and <= 10000",
    "engine.clients_per_batch=N": "got N; expected: an integer >= 1 and <= 1.04858e+06",
    "federation.hosts={a: 0-N}": "federation.hosts.a: there is no client N; expected: 0-19",
    "federation.hosts={a: 0-9, b: 10-N};aggregation={scheme: secure}": "federation.hosts.b: there is no client N",
    "evaluation={on: clients, noise_multiplier: 9, by: {a: 0-N}}": "evaluation.by.a: there is no client N; expected",
    "evaluation={on: clients, noise_multiplier: 9, every: N}": "evaluation.every must be at most rounds (4)",
    "evaluation={on: clients, epsilon: 9, by: sex, groups: [GROUPS]}": "expected: a list of text, at most 1000",
    "model={name: mlp, hidden: [LAYERS]}": "expected: a list of an integer >= 1 and <= 2.68435e+08, at most 1000",
    "check_in={scheme: batches, size: N}": "check_in.size must be at most the number of units (20), got N",
    f"{MLP};submodels={{scheme: disjoint, count: N}}": "submodels.count: N submodels, but model mlp has 8 nodes",
}
LIMITED = (
    f"{MLP};submodels={{scheme: disjoint, count: 2, whole: 0-N}}",
    "client.steps=N;rounds=1;check_in.k=1;client.batch_size=N;client.max_records=N",
    "federation.checkpoint_every=N",
    "federation.evaluate_every=N",
    "seed=N",
    "data.clients=T",
    "data.clients=T;check_in={scheme: poisson, rate: 1.0e-6}",
    f"data.clients=T;{MLP};submodels={{scheme: disjoint, count: 2, whole: 0.5}}",
    f"known_seed=true;privacy.noise_cohort=T;{MLP};submodels={{scheme: disjoint, count: 2, whole: 0-N}}",
    "aggregation={scheme: secure, nodes: 1000000}",
    "model={name: mlp, hidden: [268435456, 268435456]}",
    "model={name: mlp, hidden: [100000, 100000, 100000]}",
    "privacy.canaries=1000000",
    "data.test_records=T",
    "rounds=1000000;check_in={scheme: spaced, k: 2, gap: 400000}",
)
CHILD = """
import io, json, os, resource, sys
import fedamp.federation.cost
from fedamp.cli.commands import main

room, seconds, cases = json.load(sys.stdin)
if cases[0][0] in ('check', 'run'):
    import fedamp.server.preflight, fedamp.server.launch, fedamp.server.loop, fedamp.engines.engines
has = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
for words in cases:
    read, write = os.pipe()
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_AS, (has + room, has + room))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))  # the second one kills without a word
        sys.stdout, sys.stderr, sys.argv, status = io.StringIO(), io.StringIO(), ['fedamp', *words], None
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        os.write(write, json.dumps([status, sys.stderr.getvalue()[-600:]]).encode())
        os._exit(0)
    os.close(write)
    said = os.fdopen(read).read()
    _, ended = os.waitpid(child, 0)
    print(said or json.dumps([-ended, '']), flush=True)
"""


def answers(folder: Path, cases: list[list[str]]) -> list[tuple[int, str]]:
    """Status and last line of standard error of each command, each in a process with little memory."""
    file = folder / "huge.yaml"
    file.write_text(yaml.safe_dump(SCENARIO))
    given = json.dumps([ROOM, SECONDS, [[word.replace("FILE", str(file)) for word in words] for words in cases]])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=given, cwd=folder, env=environment, capture_output=True, text=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), done.stderr
    return [(status, said.strip().rpartition("\n")[2]) for status, said in found]


def options(overrides: str) -> list[str]:
    many = {"GROUPS": ",".join(f"g{number}" for number in range(1001)), "LAYERS": ",".join(["2"] * 1001)}
    given = overrides
    for name, value in (many | {"N": str(HUGE), "T": str(TENS)}).items():
        given = given.replace(name, value)
    return [word for override in given.split(";") for word in ("--set", override)]


@pytest.mark.slow
def test_a_huge_number_is_refused_by_its_key_and_limit(tmp_path, subtests):
    cases = [["privacy", "FILE", *options(overrides)] for overrides in REFUSED]
    for (overrides, words), (status, said) in zip(REFUSED.items(), answers(tmp_path, cases), strict=True):
        with subtests.test(overrides):
            assert status == 2
            assert words.replace("N", str(HUGE)) in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["privacy FILE", "scenarios show FILE", "check FILE", "run FILE --quiet --anyway"])
def test_no_number_takes_the_memory(command, tmp_path, subtests):
    cases = [[*command.split(), *options(overrides)] for overrides in LIMITED]
    for overrides, (status, said) in zip(LIMITED, answers(tmp_path, cases), strict=True):
        with subtests.test(overrides):
            is_long = status == -signal.SIGXCPU and command.startswith("run")  # it trains as many as it was asked to
            assert status in (0, 2) or is_long, said
            assert "emory" not in said or "this machine has" in said
