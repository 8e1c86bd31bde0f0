"""The example of NVFlare, run from a copy of its folder: NVFlare's own simulator, with processes for the sites."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import ROOT

LIAR = """
import os

from nvflare.apis.shareable import Shareable

from fedamp_nvflare import PrivateExecutor


class Liar(PrivateExecutor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        honest = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if shareable["kind"] == "query":
            return honest
        size = len(honest["sealed"])
        return Shareable({"sealed": LIES})
"""
LIES = {
    "random bytes": "os.urandom(size)",
    "more bytes": "honest['sealed'] + b'x'",
    "no bytes": "None",
    "another type": "{'sum': float('nan')}",
}


def played(folder: Path, liar: str = "") -> Path:
    """Run the example's job; a liar stands in for the second site. Returns the run's folder."""
    shutil.copytree(ROOT / "examples/nvflare", folder, dirs_exist_ok=True)
    job = (folder / "job.py").read_text().replace('/run")', '/run", known_seed=True)')
    if liar:
        (folder / "liar.py").write_text(LIAR.replace("LIES", liar))
        job = "from liar import Liar\n" + job.replace(
            "job.to(PrivateExecutor(", 'job.to((Liar if site == "site-2" else PrivateExecutor)('
        )
    (folder / "job.py").write_text(job)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run([sys.executable, "job.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert (folder / "run" / "summary.json").exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "run"


@pytest.mark.slow
def test_a_job_of_nvflare_gives_the_model_and_the_ledger_of_a_simulation(tmp_path, fedamp):
    run, simulated = played(tmp_path), tmp_path / "simulated"
    asked = ("run", tmp_path / "hospitals.yaml", "--known-seed", "--engine", "serial", "--out", simulated)
    assert fedamp(*asked).status == 0
    assert (run / "model.safetensors").read_bytes() == (simulated / "model.safetensors").read_bytes()
    ledgers = [json.loads((folder / "ledger.json").read_text()) for folder in (run, simulated)]
    assert ledgers[0]["mechanism"] == ledgers[1]["mechanism"]
    digests = [[release["digest"] for release in ledger["releases"]] for ledger in ledgers]
    assert digests[0] == digests[1]
    assert fedamp("verify", run).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_site_that_answers_otherwise_counts_as_zero_and_stops_no_round(tmp_path, fedamp, lie):
    run = played(tmp_path, lie)
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert len(rounds) == 4
    assert all(0 < line["reported"] < line["scheduled"] for line in rounds)
    assert fedamp("verify", run).status == 0
