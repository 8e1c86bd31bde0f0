"""What this machine has, and whether a deployment's server can be reached from it, and trusts and is trusted."""

import http.client
import importlib.metadata
import os
import platform
import shutil
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement

from fedamp.base import devices
from fedamp.errors import DeploymentError
from fedamp.runs.checks import Check

PACKAGES = (
    *("fedamp", "flwr", "torch", "ray", "numpy", "scipy", "numba"),
    *("scikit-learn", "flwr-datasets", "dp-accounting"),
)
TIMEOUT = 10.0  # seconds, for every connection
LEAST_DAYS = 14  # of a certificate that needs no attention yet
LARGEST_SKEW = 5.0  # seconds; Flower refuses messages whose signatures are much older or newer
# What must not be reached from outside: harmless questions to those of Flower's APIs that run code, as they stand and
# as a proxy that tidies up paths would make them.
INNER_PATHS = (
    *("/v1/control/list-runs", "/v1/runtime/get-nodes"),
    *("//v1/control/list-runs", "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs"),
)
REFUSALS = (403, 404)


def examine_machine() -> dict[str, Any]:
    """Versions, devices and memory, as ``fedamp doctor --json`` prints them."""
    memory = psutil.virtual_memory()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
        "memory_bytes": memory.total,
        "free_memory_bytes": memory.available,
        "free_disk_bytes": shutil.disk_usage(Path()).free,
        "devices": devices.names() or ["cpu"],
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine_superlink(address: str, root_certificates: Path | None) -> list[Check]:
    """Check versions, address, certificates, clock and what is open, as far as each leads to the next.

    Args:
        address: ``HOST:PORT`` of the SuperLink, as the nodes are told it.
        root_certificates: the authority that signed the server's certificate; left out: those of this system.

    Raises:
        DeploymentError: an address or a file that is none.
    """
    host, port = _host_and_port(address)
    checks = [_versions()]
    context = _context(root_certificates)
    if root_certificates is not None:
        checks.append(_days("authority", [str(certificate["notAfter"]) for certificate in context.get_ca_certs()]))
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT):
            checks.append(Check("address", "fine", f"{address} answers"))
    except OSError as error:
        reason = error.strerror or str(error)
        return [*checks, Check("address", "wrong", f"{address} does not answer ({reason}); is the SuperLink running?")]
    return [*checks, *_over_tls(host, port, context)]


def _over_tls(host: str, port: int, context: ssl.SSLContext) -> list[Check]:
    connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
    try:
        connection.connect()
        certificate: Any = connection.sock.getpeercert()
        checks = [
            Check("certificate", "fine", f"signed by the authority, for {host}"),
            _days("certificate's validity", [str(certificate["notAfter"])]),
        ]
        before = time.time()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        middle = (before + time.time()) / 2
        fine = answer.status == 200
        found = "a SuperLink that is ready" if fine else f"something answers /health with {answer.status}, no SuperLink"
        return [
            *checks,
            Check("service", "fine" if fine else "wrong", found),
            _skew(answer.headers.get("date"), middle),
            _closed(connection),
        ]
    except ssl.SSLCertVerificationError as error:
        return [Check("certificate", "wrong", f"refused: {error.verify_message}; see docs/deployment.md")]
    except ssl.SSLError as error:
        return [Check("certificate", "wrong", f"no TLS on {host}:{port} ({error.reason}); start the SuperLink with it")]
    except (OSError, http.client.HTTPException) as error:
        return [Check("service", "wrong", f"{host}:{port} broke off: {' '.join(str(error).split())}")]
    finally:
        connection.close()


def _closed(connection: http.client.HTTPSConnection) -> Check:
    """Whether nobody can start apps from here. Each question is a valid one: an empty protobuf message."""
    answers = {path: _status(connection, path) for path in INNER_PATHS}
    found = ", ".join(f"{path} answers with {status}" for path, status in answers.items() if status not in REFUSALS)
    otherwise = (
        "whoever reaches this port can run code on the server and on every node; "
        "only the proxy of docs/deployment.md may listen here"
    )
    return _check("closed", not found, found or "the nodes' API is open, and nothing else", otherwise)


def _status(connection: http.client.HTTPSConnection, path: str) -> int:
    try:
        connection.request("POST", path, headers={"content-type": "application/protobuf"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (http.client.RemoteDisconnected, ConnectionError):  # a refusal as well, if a rude one
        connection.close()
        return REFUSALS[0]


def _versions() -> Check:
    requirements = [Requirement(text) for text in importlib.metadata.requires("fedamp") or ()]
    accepted = next(requirement.specifier for requirement in requirements if requirement.name == "flwr")
    ours, flower = importlib.metadata.version("fedamp"), importlib.metadata.version("flwr")
    fine = accepted.contains(flower)
    words = "every machine needs the same" if fine else f"expected: {accepted}"
    return Check("versions", "fine" if fine else "wrong", f"fedamp {ours}, flwr {flower}; {words}")


def _days(name: str, ends: list[str]) -> Check:
    """How long certificates still hold, from texts such as ``Nov 20 11:34:00 2027 GMT``."""
    left = min((ssl.cert_time_to_seconds(end) - time.time()) / 86400 for end in ends)
    return _check(name, left >= LEAST_DAYS, f"{left:.0f} days left", "make new ones, see docs/deployment.md")


def _skew(date: str | None, now: float) -> Check:
    try:
        server = parsedate_to_datetime(date or "").timestamp() + 0.5  # the header has whole seconds, rounded down
    except ValueError:
        return Check("clock", "wrong", "the server does not tell its time")
    skew = abs(server - now)
    return _check("clock", skew <= LARGEST_SKEW, f"{skew:.1f} s from the server's", f"expected: {LARGEST_SKEW:g} s")


def _check(name: str, fine: bool, found: str, otherwise: str) -> Check:
    return Check(name, "fine", found) if fine else Check(name, "wrong", f"{found}; {otherwise}")


def _context(root_certificates: Path | None) -> ssl.SSLContext:
    if root_certificates is None:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cafile=root_certificates)
    except OSError as error:  # of which an SSLError is one
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise DeploymentError(f"--root-certificates {root_certificates}: cannot be used ({reason})") from None
    if not context.get_ca_certs():
        raise DeploymentError(f"--root-certificates {root_certificates}: holds no authority's certificate")
    return context


def _host_and_port(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise DeploymentError(f"--superlink {address}: expected: HOST:PORT, e.g. fl.example.org:8000")
    return host.strip("[]"), int(port)
