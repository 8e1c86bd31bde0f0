"""Keys that never travel: a node's request, the server's admission, renewal and revocation."""

import base64
import hashlib
import json
import shutil
import ssl
import stat
import subprocess
from contextlib import chdir, closing
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedamp.errors import DeploymentError, RunFolderError
from fedamp.extensions.deployment import doctor, membership
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
    request = membership.NodeRequest.read(folder / f"{name}.request")
    authority = (folder / "keys" / "ca.crt").read_text()
    told = {"address": "fl.example.org:8000", "authority": authority}
    given = membership.NodeAdmission(name=name, key=request.key, **told)
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


def own_authority(folder: Path) -> str:
    folder.mkdir()
    certify(folder)
    return (folder / "keys" / "ca.crt").read_text()


def beside(folder: Path) -> dict[str, str]:
    """An authority with something beside it that its fingerprint does not cover, or what is none, by its name."""
    honest, evil = own_authority(folder / "honest"), own_authority(folder / "evil")
    keys = folder / "honest" / "keys"
    der = base64.b64decode("".join(honest.splitlines()[1:-1]))
    longer = base64.encodebytes(der + b"\0").decode()
    return {
        "honest": honest,
        "a second authority": honest + evil,
        "a first authority": evil + honest,
        "the same one again": honest + honest,
        "a key": honest + (keys / "ca.key").read_text(),
        "a comment before": f"# the authority\n{honest}",
        "a comment between": honest.replace("-----END", "# more\n-----END"),
        "a comment behind": f"{honest}trust me",
        "OpenSSL's trust": honest.replace("BEGIN CERTIFICATE", "BEGIN TRUSTED CERTIFICATE"),
        "another block": f"{honest}-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n",
        "trailing bytes": f"-----BEGIN CERTIFICATE-----\n{longer}-----END CERTIFICATE-----\n",
        "a server's certificate": (keys / "server.crt").read_text(),
        "nothing": "",
    }


def fingerprints(text: str) -> list[str]:
    """Of all that a client would trust who is given this text, as OpenSSL reads it."""
    context = ssl.create_default_context(cadata=text)
    return [f"SHA256:{hashlib.sha256(each).hexdigest()}" for each in context.get_ca_certs(binary_form=True)]


def test_a_node_trusts_the_one_authority_whose_fingerprint_its_owner_sees(tmp_path, capsys):
    forms = beside(tmp_path)
    request = enroll(tmp_path / "node")
    told = {"name": "site0", "key": membership.NodeRequest.read(request).key, "address": "fl.example.org:8000"}
    given = tmp_path / "node" / "site0.admission"
    before = sorted(given.parent.iterdir())
    for what, text in forms.items():
        if what != "honest":
            membership.NodeAdmission(**told, authority=text).write(given)
            with pytest.raises(DeploymentError, match="the authority's certificate cannot be used; expected: one"):
                enroll(given.parent, admission=given)
            given.unlink()
            assert sorted(given.parent.iterdir()) == before, what
    for text in (forms["honest"], forms["honest"].replace("\n", "\r\n")):  # written again from what was parsed
        membership.NodeAdmission(**told, authority=text).write(given)
        capsys.readouterr()
        enroll(given.parent, admission=given)
        written = (given.parent / "ca.crt").read_text()
        assert written == forms["honest"]
        [trusted] = fingerprints(written)
        assert capsys.readouterr().out == f"admitted to: fl.example.org:8000, authority {trusted}\n"
    with chdir(given.parent):
        for what, text in forms.items():  # of a node that was admitted by an older version
            Path("ca.crt").write_text(text)
            found = next(each for each in doctor.examine_site("site0") if each.name == "authority")
            assert (found.verdict == "pass") == (what == "honest"), what


def test_a_server_hands_out_the_one_authority_whose_key_it_has(tmp_path):
    """Neither renewal nor admission goes on with an old certificate that is kept beside the new one."""
    forms = beside(tmp_path)
    server = tmp_path / "honest"
    request = enroll(server)
    for what, text in forms.items():
        if what != "honest":
            (server / "keys" / "ca.crt").write_text(text)
            before = {file: file.read_bytes() for file in server.rglob("*") if file.is_file()}
            for call in (lambda: certify(server), lambda: membership.admit([request], "a:1", superlink="nowhere")):
                with chdir(server), pytest.raises(DeploymentError, match=r"keys/ca\.crt: the authority's certificate"):
                    call()
            assert {file: file.read_bytes() for file in server.rglob("*") if file.is_file()} == before, what


def signed_again(request: Path, signing_key: Path, **changes: str) -> None:
    """The request as whoever has its private key can make it."""
    told = json.loads(request.read_text()) | changes
    private = load_ssh_private_key(signing_key.read_bytes(), None)
    signed = f"{told['format']} {told['name']} {told['key']}".encode()
    told["signature"] = base64.b64encode(private.sign(signed, ec.ECDSA(hashes.SHA384()))).decode()
    request.write_text(json.dumps(told))


def test_a_request_is_one_key_under_the_name_of_its_file(tmp_path):
    """``admit`` shows the fingerprint of one key beside the file's name; Flower gets the key, under the name inside."""
    request = enroll(tmp_path)
    other = membership.NodeRequest.read(enroll(tmp_path / "other")).key
    key, own = tmp_path / "site0", membership.NodeRequest.read(request).key
    kind, numbers = own.split()
    padded = base64.b64encode(base64.b64decode(numbers) + b"\0").decode()
    edwards = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    odd = [f"{own} a comment", f"{own}\n{other}", f"{own}\r\n", f" {own}", f"{kind}  {numbers}", f"{kind} {padded}"]
    for text in [*odd, f"{kind} {numbers[:8]}!{numbers[8:]}", f'command="x" {own}', edwards.decode(), ""]:
        signed_again(request, key, key=text)
        for read in (membership.public_key, lambda file: membership.admit([file], "a:1", superlink="nowhere")):
            with pytest.raises(DeploymentError, match="the request of site0 is not signed by its key"):
                read(request)
    signed_again(request, key, key=own, name="site1")
    for read in (membership.public_key, lambda file: membership.admit([file], "a:1", superlink="nowhere")):
        with pytest.raises(DeploymentError, match=r"site0\.request: the request of site1; expected: site0's"):
            read(request)
    signed_again(request, key, name="site0")
    assert membership.public_key(request) == own


def test_a_public_key_goes_into_an_agreement_alone(tmp_path):
    """What people compare there is the text; a key of ssh-keygen has a comment behind it."""
    own, other = (membership.NodeRequest.read(enroll(tmp_path / name)).key for name in ("one", "other"))
    file = tmp_path / "site0.pub"
    for text in (own, f"{own} anna@clinic\n", f"{own}\r\n"):
        file.write_bytes(text.encode())
        assert membership.public_key(file) == own
    kind, numbers = own.split()
    for text in (
        f"{own}\n{other}\n",
        f"# mine\n{own}",
        f'command="x" {own}',
        f"{kind} {numbers[:8]}!{numbers[8:]}",
        "",
    ):
        file.write_text(text)
        with pytest.raises(DeploymentError, match=r"site0\.pub: not a public key; expected: one line"):
            membership.public_key(file)


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
    with pytest.raises(DeploymentError, match=r"ca\.key: not the key of .*ca\.crt; put it back to renew"):
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
    with pytest.raises(AssertionError, match="Public key already in use"):  # what has been revoked stays so
        federation.run(admit)
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
