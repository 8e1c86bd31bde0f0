"""What leaves the server holds nothing that must stay, and every change of it is found."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from warnings import catch_warnings

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedamp.accounting.verify import FILES, MANIFEST, text_of, verify_bundle, worst_verdict
from fedamp.extensions.pages.release import release
from fedamp.runs.verification import verify_release
from fedamp.server.launch import launch
from tests.chains import relinked
from tests.federations import Silent, small
from tests.server.plays import Killed, killed_at

SECRET = (
    "description=for the ward of Mercy",
    "known_seed=false",
    "rounds=4",
    "check_in.k=2",
    "federation.hosts={secret-clinic: 0-59}",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory, home):
    folder = tmp_path_factory.mktemp("release") / "run"
    launch(small(*SECRET), Silent(), folder)
    return folder


@pytest.fixture(scope="module")
def released(run):
    return release(run)


@pytest.fixture
def copied(released, tmp_path):
    return shutil.copytree(released.folder, tmp_path / "bundle")


def failures(path, key=None) -> dict[str, str]:
    return {check.name: check.found for check in verify_release(path, key) if check.verdict == "fail"}


def test_folder_and_archive_are_fine_for_whoever_knows_the_key(released):
    for path in (released.folder, released.archive):
        checks = verify_release(path, released.public_key)
        assert {check.verdict for check in checks} == {"pass"}
        assert {"signature", "chain", "whole run", "guarantee", "scenario", "model"} <= {each.name for each in checks}
    (own,) = [check for check in verify_release(released.folder) if not check.passed]
    assert own.verdict == "caution"
    assert released.public_key in own.found


def test_it_holds_no_secret_no_path_no_node_and_no_number_without_noise(run, released):
    everything = b"".join(path.read_bytes() for path in released.folder.iterdir())
    assert {path.name for path in released.folder.iterdir()} == {MANIFEST, *FILES}
    salt = (run / "salt.secret").read_text().strip()
    for secret in (salt, "Mercy", "secret-clinic", "unprotected", "training_loss", str(run), os.path.expanduser("~")):
        assert secret.encode() not in everything, secret
    told = {line.split(":")[0].strip() for line in (released.folder / FILES[2]).read_text().splitlines()}
    assert not {"trackers", "address"} & told
    public = yaml.safe_load((released.folder / FILES[2]).read_text())
    assert public["federation"] == {"hosts": {"node 0": "0-59"}, "dummies": True}


@pytest.mark.parametrize("hosts", ["{secret-clinic: 0-59}", "{secret-clinic: all}", "trusted"])
def test_the_charge_of_nodes_that_see_who_checks_in_can_be_verified(home, tmp_path, hosts):
    launch(small(*SECRET[:-1], f"federation.hosts={hosts}", "federation.dummies=false"), Silent(), tmp_path / "run")
    bundle = release(tmp_path / "run")
    assert failures(bundle.folder) == {}
    ledger = json.loads((bundle.folder / "ledger.json").read_text())
    assert ledger["epsilon_nodes"]["lower"] > 1.2 * ledger["whole_run_epsilon"]["upper"]
    assert yaml.safe_load((bundle.folder / FILES[2]).read_text())["federation"] == {"hosts": "trusted"}


KINDS = {
    "server draws": ("check_in={scheme: balanced, k: 2}",),
    "nodes draw": ("check_in={scheme: poisson, rate: 0.3, drawn_by: node}",),
    "hosts": ("federation.hosts={secret-clinic: 0-19, b: 20-29, c: 30-39, d: 40-49, e: 50-59}",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_secure_aggregation_can_be_released(kind, home, tmp_path):
    """The public scenario lacked the section, so that it gave another cost for who runs the server."""
    secure = "aggregation={scheme: secure, dropped: 0.2, colluding: 0.2}"
    launch(small("rounds=3", "check_in.k=2", "known_seed=false", secure, *KINDS[kind]), Silent(), tmp_path / "run")
    made = release(tmp_path / "run")
    verdicts = {check.name: (check.verdict, check.found) for check in verify_release(made.folder, made.public_key)}
    assert verdicts["server"][0] == "pass"
    # The digest cannot be compared where names of nodes were left out.
    assert verdicts["scenario"][0] in ("pass", "caution"), verdicts["scenario"]
    assert "secret-clinic" not in (made.folder / FILES[2]).read_text()


def test_a_curve_that_is_sampled_is_computed_again_to_the_bit(home, tmp_path):
    """The verifier of a bundle took another delta by 1e-34, so other draws, and a curve 0.1 % apart."""
    launch(small("rounds=5", "check_in.k=2", "data.clients=40", "known_seed=false"), Silent(), tmp_path / "run")
    made = release(tmp_path / "run")
    assert {check.verdict for check in verify_bundle(made.folder, made.public_key)} == {"pass"}


def test_every_section_is_public_but_those_that_are_left_out_by_name(released):
    from fedamp.extensions.pages.public_scenario import LEFT_OUT
    from fedamp.federation.scenario import Scenario

    told = yaml.safe_load((released.folder / FILES[2]).read_text())
    assert told.keys() == Scenario.model_fields.keys() - (LEFT_OUT - {"engine", "federation"}) - {
        "evaluation",
        "questions",
    }  # none


@pytest.mark.parametrize("path", ["../patients", "..", "./x", "~/x", "/srv/x", "C:\\patients", "file:///srv/x"])
def test_no_path_of_the_server_is_public(path, run):
    from fedamp.extensions.pages.public_scenario import public_scenario
    from fedamp.runs.run import read_run

    found = read_run(run)
    model = found.scenario.model.model_copy(update={"options": {"weights": path, "kept": "owner/name", "dots": ".x"}})
    told = public_scenario(found.scenario.model_copy(update={"model": model}), found.plan)
    assert told["model"]["options"] == {"weights": "", "kept": "owner/name", "dots": ".x"}


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_is_found(released, tmp_path_factory, data):
    name = data.draw(st.sampled_from([MANIFEST, *FILES]))
    copied = shutil.copytree(released.folder, tmp_path_factory.mktemp("changed") / "bundle")
    content = bytearray((copied / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (copied / name).write_bytes(content)
    try:
        verdict = worst_verdict(verify_bundle(copied, released.public_key))
    except ValueError:  # no manifest any more
        verdict = "fail"
    assert verdict == "fail"


def test_what_is_added_gone_or_signed_by_another_is_found(released, copied, run, tmp_path):
    (copied / "seed.secret").write_text("1")
    assert "seed.secret: not of the bundle" in failures(copied)["files"]
    (copied / "seed.secret").unlink()
    (copied / FILES[3]).unlink()
    assert "certificate.html: missing" in failures(copied)["files"]
    other = release(run, tmp_path / "other", tmp_path / "other.key")
    assert other.public_key != released.public_key
    assert "was expected" in failures(other.folder, released.public_key)["signature"]
    manifest = json.loads((other.folder / MANIFEST).read_text())
    (other.folder / MANIFEST).write_text(text_of(manifest | {"public_key": released.public_key}))
    assert "not a signature" in failures(other.folder, released.public_key)["signature"]


def test_no_other_text_of_the_signature_is_taken_for_it(released, copied):
    """It is not signed itself: a blank or a capital among its digits would be a change that nobody sees."""
    manifest = json.loads((copied / MANIFEST).read_text())
    own = manifest["signature"]
    for text in (f"{own[:8]} {own[8:]}", f"{own} ", own.upper(), f"{own}00", own[:-2], "", [own]):
        (copied / MANIFEST).write_text(text_of(manifest | {"signature": text}))
        assert "is not a manifest of" in failures(copied, released.public_key)["files"]


def test_a_ledger_that_claims_less_is_found_though_it_is_signed(released, copied, home):
    ledger = json.loads((copied / "ledger.json").read_text())
    ledger["whole_run_epsilon"]["upper"] /= 2
    ledger["guaranteed_epsilon"] /= 2
    sign_again(copied, relinked(ledger), home)
    assert set(failures(copied, released.public_key)) == {"whole run", "guarantee"}


def sign_again(bundle, ledger, home) -> None:
    """By somebody who has the key, and makes digests, chain and signature anew."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    from fedamp.accounting.verify import Bundle, signed_content

    (bundle / "ledger.json").write_text(json.dumps(ledger))
    manifest = json.loads((bundle / MANIFEST).read_text())
    with Bundle(bundle) as opened:
        manifest["files"]["ledger.json"] = opened.file_digest("ledger.json")
    manifest["head"] = ledger.get("head", "")
    key = load_pem_private_key((home / "release.key").read_bytes(), None)
    (bundle / MANIFEST).write_text(text_of(manifest | {"signature": key.sign(signed_content(manifest)).hex()}))


@pytest.mark.parametrize("value", ["(gone)", None, 3, "text", [1], {"a": 1}])
def test_a_key_that_is_missing_or_of_another_type_is_one_line(released, copied, home, value):
    """``fedamp-accounting`` reads it without types."""
    whole = json.loads((copied / "ledger.json").read_text())
    for key in whole:
        ledger = {other: it for other, it in whole.items() if other != key or value != "(gone)"}
        if value != "(gone)":
            ledger[key] = value
        with suppress(LookupError, TypeError, AttributeError):
            ledger = relinked(ledger)
        sign_again(copied, ledger, home)
        for check in verify_bundle(copied, released.public_key):
            assert "\n" not in check.found
        if value == "(gone)" and key in ("mechanism", "releases", "epsilon_server", "delta", "adjacency"):
            assert failures(copied, released.public_key), key


def test_a_key_that_nothing_computes_again_is_refused(released, copied, home):
    ledger = json.loads((copied / "ledger.json").read_text())
    sign_again(copied, relinked(ledger | {"audited_by": "everybody"}), home)
    assert "nothing computes audited_by again" in failures(copied, released.public_key)["keys"]


def test_an_archive_cannot_write_elsewhere_or_hold_a_name_twice(released, tmp_path):
    for number, names in enumerate((["../evil"], ["ledger.json"], ["/etc/passwd"])):
        file = tmp_path / f"{number}.zip"
        shutil.copy(released.archive, file)
        with zipfile.ZipFile(file, "a") as archive, catch_warnings(action="ignore"):  # it warns of the second one
            for name in names:
                archive.writestr(name, "{}")
        assert "not of the bundle" in failures(file)["files"]
    content = released.archive.read_bytes()
    for changed in (b"#!/bin/sh\n" + content, content + b"x"):  # read as an archive all the same
        (tmp_path / "more.zip").write_bytes(changed)
        assert worst_verdict(verify_bundle(tmp_path / "more.zip")) == "fail"
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            archive.writestr(name, bytes(1 << 26))
        archive.writestr(MANIFEST, (released.folder / MANIFEST).read_text())
    tracemalloc.start()
    assert "not of the bundle" in failures(tmp_path / "bomb.zip")["files"]
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    (tmp_path / "none.zip").write_text("no archive")
    with pytest.raises(ValueError, match="no bundle"):
        verify_bundle(tmp_path / "none.zip")


def test_every_bit_of_an_archive_counts(released, tmp_path):
    """Of its headers, too: dates, attributes, versions and flags were nobody's."""
    content, file = released.archive.read_bytes(), tmp_path / "flipped.zip"
    with zipfile.ZipFile(released.archive) as archive:
        spans = [(each.header_offset + 30 + len(each.filename), each.file_size) for each in archive.infolist()]
    inside = {place for start, size in spans for place in range(start, start + size)}
    headers = [place for place in range(len(content)) if place not in inside]
    assert len(headers) == 22 + sum(76 + 2 * len(name) for name in (MANIFEST, *FILES))
    some_inside = [start + size // 2 for start, size in spans]
    for place in (*headers, *some_inside):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            verdict = worst_verdict(verify_bundle(file, released.public_key))
        except ValueError:  # no archive any more
            verdict = "fail"
        assert verdict == "fail", place


def test_two_archives_of_one_folder_are_equal(released, tmp_path):
    from fedamp.accounting.verify import Bundle

    with Bundle(released.folder) as bundle, (tmp_path / "again.zip").open("wb") as stream:
        bundle.write_archive(stream)
    assert (tmp_path / "again.zip").read_bytes() == released.archive.read_bytes()


def test_the_key_is_made_once_and_for_its_owner_alone(run, released, home, tmp_path, fedamp):
    key = home / "release.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    again = release(run, tmp_path / "again")
    assert again.public_key == released.public_key
    key.chmod(0o644)
    answer = fedamp("release", run, "--out", tmp_path / "open")
    key.chmod(0o600)
    assert answer.status == 2
    assert "expected: chmod 600" in answer.err
    assert not (tmp_path / "open").exists()
    answer = fedamp("release", run, "--out", tmp_path / "again")
    assert (answer.status, answer.out) == (2, "")
    assert "exists already" in answer.err


def test_the_commands_and_the_verifier_that_needs_nothing_else(run, tmp_path, home, fedamp):
    made = json.loads(fedamp("release", run, "--out", tmp_path / "out", "--json").out)
    assert fedamp("verify", made["archive"], "--key", made["public_key"]).status == 0
    wrong = fedamp("verify", made["folder"], "--key", "0" * 64)
    assert wrong.status == 1
    assert "was expected" in wrong.err
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('fedamp.accounting', run_name='__main__')\n"
        "finally: print({'torch', 'flwr', 'ray', 'pydantic'} & set(sys.modules))"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", program, made["folder"], "--key", made["public_key"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("set()\n")
    assert "guarantee: epsilon" in done.stdout


def test_a_run_is_released_from_within_its_folder(run, tmp_path, home, fedamp, monkeypatch):
    shutil.copytree(run, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    assert fedamp("release", ".").status == 0
    assert (tmp_path / "mine-release.zip").is_file()
    assert "exists already" in fedamp("release", ".", "--out", ".").err


def test_a_run_that_has_ended_keeps_no_secret_seed_and_no_checkpoint(run, tmp_path):
    assert not (run / "seed.secret").exists()
    assert not (run / "checkpoint").exists()
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.name != "log.txt" and path.is_file()}
    launch(small(*SECRET), Silent(), run, resume=True)  # nothing is left to do
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.name != "log.txt" and path.is_file()}
    assert before == after
    launch(small(*SECRET, "federation.keep_secrets=true"), Silent(), tmp_path / "kept")
    assert (tmp_path / "kept" / "seed.secret").is_file()
    assert list((tmp_path / "kept" / "checkpoint").iterdir())
    launch(small(*SECRET, "known_seed=true"), Silent(), tmp_path / "known")
    assert list((tmp_path / "known" / "checkpoint").iterdir())  # there it protects nothing


@pytest.mark.slow
@pytest.mark.parametrize("first", [12, 11])
def test_a_run_killed_while_it_ends_can_be_verified_and_ended(fedamp, tmp_path, monkeypatch, first):
    scenario = small("rounds=1", "check_in.k=1", "known_seed=false")
    with killed_at(monkeypatch, -1) as undisturbed:
        launch(scenario, Silent(), tmp_path / "undisturbed")
    for step in range(len(undisturbed) - first, len(undisturbed), 2):  # from the model's file to the last deleted one
        folder = tmp_path / str(step)
        with killed_at(monkeypatch, step), pytest.raises(Killed):
            launch(scenario, Silent(), folder)
        answer = fedamp("verify", folder)  # between ledger and summary one file is missing
        assert answer.status == 0 or "--resume writes it again" in answer.err
        assert fedamp("run", folder / "scenario.yaml", "--resume", "--out", folder).status == 0
        assert fedamp("verify", folder).status == 0
        assert not (folder / "seed.secret").exists()
        assert not (folder / "checkpoint").exists()
