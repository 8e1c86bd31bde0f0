"""Define who belongs to a deployment: the server's certificates, a node's own key, and its admission by name.

A private key is made where it is used, and stays there. A node's request holds the public half and a signature by the
private one; the admission holds what the node must know of the server. Neither is secret, but both must come from the
people that they name: each side prints the fingerprints that its people compare over another way.

The docstrings of ``certify``, ``enroll`` and ``admit`` are their help.
"""

import base64
import datetime
import hashlib
import ipaddress
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import Field, ValidationError
from typer import Argument, Option

from fedamp.base.files import FileRecord, write_atomically
from fedamp.base.reading import TYPED, read_regular, read_typed
from fedamp.base.record import NodeName, one_line
from fedamp.base.start import QUIET
from fedamp.cli.terminal import print_paths
from fedamp.errors import DeploymentError

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 365
KEYS, NODES = Path("keys"), Path("nodes.json")  # in the server's folder, where its commands are typed


class NodeRequest(FileRecord):
    """The content of ``NAME.request``, which a node's owner sends to the server's people.

    Attributes:
        name: of the node.
        key: public, as OpenSSH writes it.
        signature: of name and key, by the private key, in base64.
    """

    kind: ClassVar[str] = "request"
    format: Literal["fedamp request 1"] = "fedamp request 1"
    name: NodeName
    key: Annotated[str, Field(max_length=1000)]
    signature: Annotated[str, Field(max_length=1000)]

    @property
    def signed(self) -> bytes:
        """Bytes that the signature is of."""
        return f"{self.format} {self.name} {self.key}".encode()

    def check(self) -> None:
        """Refuse a false request.

        Raises:
            DeploymentError: its key cannot be read, has something beside it, or has not signed it.
        """
        try:
            key = load_ssh_public_key(self.key.encode())
            if not isinstance(key, ec.EllipticCurvePublicKey) or _openssh_text(key) != self.key:
                raise ValueError("another kind of key, or more than a key")
            key.verify(base64.b64decode(self.signature), self.signed, ec.ECDSA(hashes.SHA384()))
        except (ValueError, InvalidSignature, UnsupportedAlgorithm):
            found = f"the request of {self.name} is not signed by its key; expected: as enroll wrote it"
            raise DeploymentError(found) from None


class NodeAdmission(FileRecord):
    """The content of ``NAME.admission``: the key that was registered, and what its node must know of the server.

    Attributes:
        name: of the node.
        key: public, as OpenSSH writes it.
        address: ``HOST:PORT`` of the server, as the nodes know it.
        authority: certificate (PEM) that the node is to trust.
        agreement: empty; older versions had one.
    """

    kind: ClassVar[str] = "admission"
    format: Literal["fedamp admission 1"] = "fedamp admission 1"
    name: NodeName
    key: Annotated[str, Field(max_length=1000)]
    address: Annotated[str, Field(pattern=r"^[A-Za-z0-9\[][A-Za-z0-9.\[\]:-]{0,253}:[0-9]{1,5}$")]  # it goes to systemd
    authority: Annotated[str, Field(max_length=100_000)]  # certificate (PEM)
    agreement: None = None  # of older versions


_R = TypeVar("_R", bound=FileRecord)


def made(kind: type[_R], **fields: Any) -> _R:
    """Make a record of what people typed.

    Raises:
        DeploymentError: a field is wrong.
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        raise DeploymentError(f"{kind.kind}: {one_line(error)}") from None


class RegisteredNodes(FileRecord):
    """The content of ``nodes.json``, which the server reads in a run.

    Attributes:
        numbers: Flower's number of each node by its name, which Flower's list does not tell.
    """

    kind: ClassVar[str] = "list of nodes"
    format: Literal["fedamp nodes 1"] = "fedamp nodes 1"
    numbers: dict[str, str] = Field(default_factory=dict)


def certify(
    host: Annotated[str, Argument(help="name or IP address by which the nodes reach the server")],
) -> None:
    """On the server: create its authority and certificates, or renew the certificates.

    Keep keys/ca.key offline between renewals.
    """
    names = {"server": [_general_name(host)], "superlink": [_general_name("localhost"), _general_name("127.0.0.1")]}
    KEYS.mkdir(mode=0o700, exist_ok=True)
    key, certificate = KEYS / "ca.key", KEYS / "ca.crt"
    if not certificate.exists():
        authority = ec.generate_private_key(ec.SECP384R1())
        name = _common_name("fedamp deployment")
        made = _certificate_builder(name, name, authority.public_key(), AUTHORITY_DAYS)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # certificates, revocations
        made = made.add_extension(signs, critical=True)
        _write_key(key, authority)
        write_atomically(certificate, made.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM))
    try:
        issuer = authority_of(read_regular(certificate, TYPED), certificate)
        signer = load_pem_private_key(read_regular(key, TYPED), None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
            raise ValueError
    except (OSError, ValueError):
        raise DeploymentError(f"{key}: not the key of {certificate}; put it back to renew") from None
    for file, known_as in names.items():
        own = ec.generate_private_key(ec.SECP384R1())
        made = _certificate_builder(
            _common_name(str(known_as[0].value)), issuer.subject, own.public_key(), CERTIFICATE_DAYS
        )
        made = made.add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        made = made.add_extension(identifier, critical=False)
        _write_key(KEYS / f"{file}.key", own)
        write_atomically(KEYS / f"{file}.crt", made.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))
    print_paths("for the proxy", KEYS / "server.crt", KEYS / "server.key")
    print_paths("for the SuperLink", KEYS / "superlink.crt", KEYS / "superlink.key")
    print_paths("for all", f"{certificate} ({fingerprint_of(issuer)})")
    print_paths("keep offline: anyone who has it can pretend to be the server", key)


def enroll(
    name: Annotated[str, Argument(help="of the node, as in federation.hosts")],
    admission: Annotated[Path | None, Option(help="the server's answer, which this node now follows")] = None,
    renew: Annotated[bool, Option("--renew", help="make another key; the old one serves until the admission")] = False,
) -> None:
    """On a node: create its key and a request; with an admission, the files that it starts with.

    Compare the printed fingerprints with the server's people in another way,
    such as by telephone.
    """
    key, following = Path(name), Path(f"{name}.new")
    if admission is not None:
        _follow_admission(NodeAdmission.read(admission), key, following)
        return
    if key.exists() and not renew:
        raise DeploymentError(f"{key}: this node has a key; expected: --renew, or another name")
    private, file = ec.generate_private_key(ec.SECP384R1()), following if key.exists() else key
    unsigned = made(NodeRequest, name=name, key=_openssh_text(private.public_key()), signature="")
    signature = base64.b64encode(private.sign(unsigned.signed, ec.ECDSA(hashes.SHA384()))).decode()
    request = unsigned.model_copy(update={"signature": signature})
    _write_key(file, private, PrivateFormat.OpenSSH)
    request.write(Path(f"{name}.request"))
    print_paths("stays here", file)
    print_paths("for the server", f"{name}.request ({_key_fingerprint(request.key)})")


def admit(
    requests: Annotated[list[Path], Argument(help="of the nodes")] = [],  # noqa: B006
    address: Annotated[str, Option(help="HOST:PORT of the proxy, as the nodes know it")] = "",
    superlink: Annotated[str, Option(help="name of the connection in Flower's config.toml")] = "lan",
    renew: Annotated[bool, Option("--renew", help="revoke the key that a node has, and register the new one")] = False,
    revoke: Annotated[list[str], Option(help="name of a node whose key is revoked")] = [],  # noqa: B006
) -> None:
    """On the server: register nodes and write their admissions, or revoke keys (also during a run).

    Compare the printed fingerprints with the nodes' people before, in another
    way, such as by telephone.
    """
    found = [_read_request(file) for file in requests]
    if len({request.name for request in found}) < len(found):
        raise DeploymentError("two requests have one name; expected: a name for each node")
    own = KEYS / "ca.crt"
    issuer = authority_of(read_regular(own, TYPED), own) if found else None  # before anybody is registered
    given = {"address": address, "authority": issuer and _pem_bytes(issuer).decode()}
    answers = [made(NodeAdmission, name=request.name, key=request.key, **given) for request in found]
    known = RegisteredNodes.read(NODES).numbers if NODES.exists() else {}
    with _Flower() as flower:
        there = {each["node-id"] for each in flower("list", superlink)["nodes"] if each["status"] != "unregistered"}
        known = {name: number for name, number in known.items() if number in there}  # a database may have been deleted
        if unknown := [name for name in revoke if name not in known]:
            raise DeploymentError(
                f"--revoke {unknown[0]}: no such node; in {NODES}: {', '.join(sorted(known)) or 'none'}"
            )
        if not renew and (twice := [request.name for request in found if request.name in known]):
            raise DeploymentError(f"{twice[0]} is registered already; expected: --renew, or another name")
        for name in [*revoke, *(request.name for request in found if request.name in known)]:
            flower("unregister", known.pop(name), superlink)
            RegisteredNodes(numbers=known).write(NODES)
            print_paths("revoked", name)
        for file, request, answer in zip(requests, found, answers, strict=True):
            with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
                public.write(request.key)
                public.flush()
                number = flower("register", public.name, superlink, "--name", request.name)["node-id"]
            known[request.name] = str(number)
            RegisteredNodes(numbers=known).write(NODES)
            answer.write(file.with_suffix(".admission"))
            print_paths("for the node", f"{file.with_suffix('.admission')} ({_key_fingerprint(request.key)})")
    if issuer is not None:
        print_paths("with the authority", fingerprint_of(issuer))


def public_key(file: Path) -> str:
    """Return a public key as OpenSSH writes it, without its comment.

    Args:
        file: a node's request, or a file of the key alone.

    Raises:
        DeploymentError: a false request, or a file with anything else.
    """
    if file.suffix == ".request":
        return _read_request(file).key
    try:
        text = read_typed(file).strip()
        written = _openssh_text(load_ssh_public_key(text.encode()))
        if len(text.splitlines()) > 1 or text.split()[:2] != written.split():
            raise ValueError
    except (ValueError, UnsupportedAlgorithm):
        raise DeploymentError(f"{file}: not a public key; expected: one line, as ssh-keygen writes it") from None
    return written


def _read_request(file: Path) -> NodeRequest:
    """Read a node's request.

    Raises:
        DeploymentError: it is false, or that of another node than the file's name says.
    """
    request = NodeRequest.read(file)
    request.check()
    if request.name != file.stem:
        raise DeploymentError(f"{file}: the request of {request.name}; expected: {file.stem}'s, as the file is named")
    return request


def _public_half(file: Path) -> str:
    """Return the public half of a private key.

    Raises:
        DeploymentError: it cannot be read.
    """
    try:
        return _openssh_text(load_ssh_private_key(read_regular(file, TYPED), None).public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise DeploymentError(f"{file}: not a node's key; expected: as enroll wrote it, without a password") from None


def _follow_admission(found: NodeAdmission, key: Path, following: Path) -> None:
    """Write what an admission says; the key that it names becomes this node's."""
    own = [file for file in (key, following) if file.exists() and _public_half(file) == found.key]
    if found.name != str(key) or not own:
        raise DeploymentError(f"the admission is of another key than {key}'s; expected: the answer to {key}.request")
    issuer = authority_of(found.authority.encode(), "the admission")
    write_atomically(Path("ca.crt"), _pem_bytes(issuer))
    write_atomically(Path("node.conf"), f"SUPERLINK={found.address}\n".encode())
    own[0].replace(key)
    print_paths("admitted to", f"{found.address}, authority {fingerprint_of(issuer)}")


class _Flower:
    """Runs ``flwr supernode`` in one process for all its commands, since its imports take longer than they do.

    It is a context manager. Flower runs not in this process: where it fails, it ends its own.
    """

    def __enter__(self) -> Self:
        """Start the process."""
        words = [sys.executable, "-P", "-c", _SERVE_FLOWER]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(words, text=True, env=QUIET | dict(os.environ), **pipes)
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def __call__(self, command: str, *arguments: str) -> Any:
        """Run a command, and return its answer.

        Raises:
            DeploymentError: with what the command complains of.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = json.dumps(["supernode", command, *arguments, "--format", "json"])
        with suppress(BrokenPipeError):  # what it said, or that it said nothing, is below
            print(words, file=self._process.stdin, flush=True)
        said = "".join(takewhile(_END.__ne__, self._process.stdout))
        try:
            answer = json.JSONDecoder().raw_decode(said, said.index("{"))[0]
        except ValueError:
            answer = {"error-message": said}
        if not answer.get("success"):
            said = " ".join(str(answer.get("error-message", "no reason")).split())
            raise DeploymentError(f"flwr supernode {command}: {said}; is the SuperLink running, on this machine?")
        return answer


_END = "\0\n"
_SERVE_FLOWER = """
import json, sys
from contextlib import suppress
from flwr.cli.app import app
for line in sys.stdin:
    with suppress(SystemExit):
        app(json.loads(line))
    print("\\0", flush=True)
"""


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    """Begin a certificate that holds from a day ago, for the clocks of others, and for some days."""
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    made = made.not_valid_after(now + datetime.timedelta(days=days))
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _common_name(common: str) -> x509.Name:
    """Make the name of a certificate's holder."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _general_name(host: str) -> x509.GeneralName:
    """Make the name or IP address for which a certificate holds.

    Raises:
        DeploymentError: it is neither.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if re.fullmatch(r"[A-Za-z0-9.-]+", host):
            return x509.DNSName(host)
    raise DeploymentError(f"{host}: expected: a host's name, such as fl.example.org, or an IP address")


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> None:
    """Write a private key for its owner alone."""
    write_atomically(file, key.private_bytes(Encoding.PEM, form, NoEncryption()), mode=0o600)


def _openssh_text(key: Any) -> str:
    """Write a public key as OpenSSH does."""
    return str(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())


def _key_fingerprint(key: str) -> str:
    """Compute a key's fingerprint as ``ssh-keygen -l`` prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def authority_of(content: bytes, where: object) -> x509.Certificate:
    """Read the certificate of an authority (PEM).

    People compare the fingerprint of one certificate, and a program that reads the content trusts each one in it.

    Args:
        content: of a file.
        where: it is from, for the error.

    Raises:
        DeploymentError: it is none, or something is beside it.
    """
    with suppress(ValueError, x509.ExtensionNotFound):
        [found] = x509.load_pem_x509_certificates(content)
        alone = b"".join(content.split()) == b"".join(_pem_bytes(found).split())
        if alone and found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return found
    expected = "one certificate (PEM) that may sign others, as ca.crt, and nothing beside it"
    raise DeploymentError(f"{where}: the authority's certificate cannot be used; expected: {expected}")


def _pem_bytes(certificate: x509.Certificate) -> bytes:
    """Write a certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Compute a certificate's fingerprint as ``openssl x509 -fingerprint -sha256`` prints it, without colons."""
    return f"SHA256:{certificate.fingerprint(hashes.SHA256()).hex()}"
