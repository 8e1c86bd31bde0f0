"""Keys that never travel: a node's request, the server's admission, renewal and revocation."""

import json
import shutil
import stat
import subprocess
from contextlib import chdir, closing
from pathlib import Path

import httpx
import pytest

from fedamp.cli import membership
from fedamp.errors import DeploymentError, RunFolderError
from tests.deployment.hostile import WireNode


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def enroll(folder: Path, name: str = "site0", **options: object) -> Path:
    folder.mkdir(exist_ok=True)
    with chdir(folder):
        membership.enroll(name, **{"admission": None, "renew": False} | options)
    return folder / f"{name}.request"


def certify(folder: Path, host: str = "fl.example.org") -> None:
    with chdir(folder):
        membership.certify(host)


def answer(folder: Path, name: str = "site0") -> Path:
    """What a server that registered the request would give."""
    certify(folder)
    request = membership.Request.read(folder / f"{name}.request")
    authority = (folder / "keys" / "ca.crt").read_text()
    told = {"address": "fl.example.org:8000", "authority": authority}
    given = membership.Admission(name=name, key=request.key, **told)
    given.write(folder / f"{name}.admission")
    return folder / f"{name}.admission"


def private(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file() and b"PRIVATE" in file.read_bytes())


def test_a_node_makes_its_key_and_only_the_public_half_is_in_the_request(tmp_path):
    request = enroll(tmp_path)
    assert mode(tmp_path / "site0") == 0o600
    assert private(tmp_path) == ["site0"]
    told = json.loads(request.read_text())
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", "site0"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told["key"] == public.stdout.strip()
    assert told["key"].startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(DeploymentError, match="site0: this node has a key; expected: --renew, or another name"):
        enroll(tmp_path)
    with pytest.raises(DeploymentError, match="request: name: String should match pattern"):
        enroll(tmp_path, "../site0")


def test_a_request_that_its_key_has_not_signed_is_refused(tmp_path):
    request, other = enroll(tmp_path / "one"), enroll(tmp_path / "other")
    told, foreign = (json.loads(file.read_text()) for file in (request, other))
    for change in ({"name": "site1"}, {"key": foreign["key"]}, {"key": "no key"}, {"signature": "no base64"}):
        request.write_text(json.dumps(told | change))
        with pytest.raises(DeploymentError, match=r"the request of site\d is not signed by its key"):
            membership.public_key(request)
    request.write_text(json.dumps(told | {"name": "a b"}))
    with pytest.raises(RunFolderError, match="damaged request: name: String should match pattern"):
        membership.public_key(request)


def test_a_node_follows_the_admission_of_its_own_key_alone(tmp_path):
    enroll(tmp_path)
    given = answer(tmp_path)
    enroll(tmp_path, admission=given)
    assert (tmp_path / "ca.crt").read_bytes() == (tmp_path / "keys" / "ca.crt").read_bytes()
    assert (tmp_path / "node.conf").read_text() == "SUPERLINK=fl.example.org:8000\n"
    enroll(tmp_path / "other")
    with pytest.raises(DeploymentError, match="the admission is of another key than site0's"):
        enroll(tmp_path / "other", admission=given)
    assert sorted(file.name for file in (tmp_path / "other").iterdir()) == ["site0", "site0.request"]
    told = json.loads(given.read_text())
    for change in ({"address": "fl.example.org:1\nLD_PRELOAD=x"}, {"authority": "none"}):
        given.write_text(json.dumps(told | change))
        with pytest.raises((RunFolderError, DeploymentError), match=r"address: String should match|cannot be used"):
            enroll(tmp_path, admission=given)
    assert (tmp_path / "node.conf").read_text() == "SUPERLINK=fl.example.org:8000\n"


def test_a_new_key_takes_the_old_ones_place_with_its_admission(tmp_path):
    enroll(tmp_path)
    enroll(tmp_path, admission=answer(tmp_path))
    old = (tmp_path / "site0").read_bytes()
    enroll(tmp_path, renew=True)
    assert (tmp_path / "site0").read_bytes() == old
    new = (tmp_path / "site0.new").read_bytes()
    assert mode(tmp_path / "site0.new") == 0o600
    enroll(tmp_path, admission=answer(tmp_path))
    assert (tmp_path / "site0").read_bytes() == new != old
    assert not (tmp_path / "site0.new").exists()


def verified(folder: Path, certificate: str) -> bool:
    command = ["openssl", "verify", "-CAfile", "ca.crt", "-purpose", "sslserver", "-x509_strict", certificate]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def test_a_host_that_is_none_is_refused_before_a_key_is_made(tmp_path):
    with pytest.raises(DeploymentError, match=r"not a host: expected: a host's name, such as fl\.example\.org"):
        certify(tmp_path, "not a host")
    assert not (tmp_path / "keys").exists()


def test_certificates_are_renewed_with_the_same_authority_and_only_with_its_key(tmp_path):
    keys = tmp_path / "keys"
    certify(tmp_path)
    assert mode(keys) == 0o700
    assert {file.name: mode(file) for file in keys.glob("*.key")} == dict.fromkeys(
        ["ca.key", "server.key", "superlink.key"], 0o600
    )
    before = {file.name: file.read_bytes() for file in keys.iterdir()}
    assert verified(keys, "server.crt")
    assert verified(keys, "superlink.crt")
    certify(tmp_path, "10.0.0.1")
    after = {file.name: file.read_bytes() for file in keys.iterdir()}
    assert {name for name in after if after[name] == before[name]} == {"ca.crt", "ca.key"}
    assert verified(keys, "server.crt")
    (tmp_path / "ca.key").write_bytes((keys / "ca.key").read_bytes())
    (keys / "ca.key").write_bytes(after["server.key"])
    with pytest.raises(DeploymentError, match=r"ca\.key: not the key of .*ca\.crt; expected: it is put back to renew"):
        certify(tmp_path, "10.0.0.1")
    (keys / "ca.key").unlink()
    with pytest.raises(DeploymentError, match=r"ca\.key: not the key of"):
        certify(tmp_path, "10.0.0.1")
    assert {file.name: file.read_bytes() for file in keys.iterdir()} == {
        k: v for k, v in after.items() if k != "ca.key"
    }


def status(node: WireNode) -> int:
    """Of a request with the node's key."""
    try:
        node.pull()
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


@pytest.mark.slow
def test_a_key_is_renewed_and_revoked_by_name_on_a_real_superlink(federation):
    """``federation`` has admitted its nodes by the page's commands."""
    told = json.loads((federation.server / "nodes.json").read_text())["numbers"]
    assert set(told) == set(federation.names)
    assert private(federation.folder / "site1") == ["site1"]
    name, folder = "site7", federation.folder / "site7"
    folder.mkdir()
    federation.shell("node: make the key", name, NODE=name)
    shutil.copy(folder / f"{name}.request", federation.server)
    admit = f"fedamp admit {name}.request --address 127.0.0.1:{federation.port}"
    federation.run(admit)
    shutil.copy(federation.server / f"{name}.admission", folder)
    federation.shell("node: follow the admission", name, NODE=name)
    with pytest.raises(AssertionError, match=f"{name} is registered already; expected: --renew, or another name"):
        federation.run(admit)
    with closing(WireNode(federation, name)) as old:
        assert status(old) == 200
        federation.shell("node: make another key", name, NODE=name)
        shutil.copy(folder / f"{name}.request", federation.server)
        federation.shell("server: admit another key of a node", NODE=name)
        assert status(old) == 401
    federation.hand_out(name)
    with closing(WireNode(federation, name)) as new:
        assert status(new) == 200
        federation.shell("server: revoke the key of a node", NODE=name)
        assert status(new) == 401
    with pytest.raises(AssertionError, match=f"--revoke {name}: no such node"):
        federation.shell("server: revoke the key of a node", NODE=name)
    left = json.loads((federation.server / "nodes.json").read_text())["numbers"]
    assert left == told


def test_without_a_superlink_nothing_is_written(tmp_path):
    request = enroll(tmp_path)
    certify(tmp_path, "127.0.0.1")
    authority = tmp_path / "keys" / "ca.crt"
    whole = authority.read_bytes()
    authority.write_bytes(b"\x30\x82")
    before = sorted(tmp_path.rglob("*"))
    with chdir(tmp_path), pytest.raises(DeploymentError, match="the authority's certificate cannot be used; expected"):
        membership.admit([request], "127.0.0.1:1", superlink="nowhere")
    authority.write_bytes(whole)
    with chdir(tmp_path), pytest.raises(DeploymentError, match="admission: address: String should match pattern"):
        membership.admit([request], "fl.example.org", superlink="nowhere")
    with chdir(tmp_path), pytest.raises(DeploymentError, match=r"flwr supernode list: .*; is the SuperLink running"):
        membership.admit([request], "127.0.0.1:1", superlink="nowhere")
    assert sorted(tmp_path.rglob("*")) == before
