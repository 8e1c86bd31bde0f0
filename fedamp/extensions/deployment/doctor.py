"""Examine this machine: its versions and devices, and whether it can reach and trust the server of a deployment.

Each function returns checks (:class:`fedamp.accounting.verify.Check`); a failing one names its cure. Requests to a
server are harmless. :mod:`fedamp.extensions.deployment.commands` prints them.
"""

import http.client
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import ssl
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from cryptography import x509

from fedamp.accounting.verify import Check
from fedamp.base import devices
from fedamp.base.reading import TYPED, read_regular, regular
from fedamp.errors import DeploymentError
from fedamp.extension import offered

FLOWER = (1, 41), (1, 43)  # the first version that is supported, and the first that is not: as in pyproject.toml
PACKAGES = "fedamp", "flwr", "torch", "ray", "numpy", "scipy", "numba", "datasets", "dp-accounting"
TIMEOUT = 10.0  # seconds, for every connection
LEAST_MEMORY, LEAST_DISK = 500e6, 100e6  # bytes; what `fedamp node` uses, or the server, with a small model
LEAST_DAYS = 14  # of a certificate that needs no attention yet
LARGEST_SKEW = 5.0  # seconds; Flower refuses messages whose signatures are much older or newer
# Paths that must be closed to others: harmless requests to those of Flower's APIs that run code, as they are and as a
# proxy that normalises paths would make them.
INNER_PATHS = (
    *("/v1/control/list-runs", "/v1/runtime/get-nodes"),
    *("//v1/control/list-runs", "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs"),
)
REFUSALS = (403, 404)


def examine_machine() -> dict[str, Any]:
    """Return versions, devices and memory, as ``fedamp doctor --json`` prints them; sizes are in bytes."""
    memory, free = devices.memory()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _installed_version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "free_memory_bytes": free,
        "free_disk_bytes": shutil.disk_usage(Path()).free,
        "devices": devices.names() or ["cpu"],
    }


def examine_capacity() -> list[Check]:
    """Check that this machine is not too small, or too busy, for a node or a server."""
    _, free = devices.memory()
    disk, load = shutil.disk_usage(Path()).free, devices.load_share()
    found = f"{free / 1e9:.1f} GB of memory and {disk / 1e9:.1f} GB of disk free"
    needed = f"expected: {LEAST_MEMORY / 1e9:g} and {LEAST_DISK / 1e9:g} GB, with a small model"
    small = free < LEAST_MEMORY or disk < LEAST_DISK
    said = f"{load:.1f} processes wait for each core"
    less = f"{said}; expected: less work here, or a longer federation.round_deadline"
    return [
        Check.of_failure("size", found, fail=f"{found}; {needed}" if small else None),
        Check.of_failure("load", said, caution=less if load >= devices.BUSY_LOAD else None),
    ]


def _installed_version(name: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine_superlink(address: str, root_certificates: Path | None) -> list[Check]:
    """Check versions, address, certificates, clock and open paths, as far as each leads to the next.

    Args:
        address: ``HOST:PORT`` of the SuperLink, as the nodes know it.
        root_certificates: file of the authority of the server's certificate; default: those of this system.

    Raises:
        DeploymentError: the address or the file cannot be used.
    """
    host, _, number = address.rpartition(":")
    if not host or not number.isdecimal() or not 0 < int(number) < 65536:
        raise DeploymentError(f"--superlink {address}: expected: HOST:PORT, e.g. fl.example.org:8000")
    host, port = host.strip("[]"), int(number)
    context, proxy = _tls_context(root_certificates), _forward_proxy(host)
    checks = [_check_versions()]
    if root_certificates is not None:
        checks.append(
            _check_expiry("authority", [str(certificate["notAfter"]) for certificate in context.get_ca_certs()])
        )
    try:
        with socket.create_connection(proxy or (host, port), timeout=TIMEOUT):
            through = "the proxy {}:{} answers, on the way to ".format(*proxy) + address if proxy else ""
            checks.append(Check.of_failure("address", through or f"{address} answers"))
    except OSError as error:
        reason = error.strerror or str(error)
        return [
            *checks,
            _check_of("address", False, f"{address} does not answer ({reason}); is the SuperLink running?"),
        ]
    connection = http.client.HTTPSConnection(*(proxy or (host, port)), timeout=TIMEOUT, context=context)
    if proxy:
        connection.set_tunnel(host, port)
    try:
        connection.connect()
        checks += _over_tls(connection, host)
    except ssl.SSLCertVerificationError as error:
        told = f"refused: {error.verify_message}; this machine's time is {time.strftime('%F %T', time.gmtime())} UTC"
        checks.append(_check_of("certificate", False, told, "see docs/deployment.md"))
    except ssl.SSLError as error:
        without_tls = f"no TLS on {address} ({error.reason}); start the SuperLink with it"
        checks.append(_check_of("certificate", False, without_tls))
    except (OSError, http.client.HTTPException) as error:
        checks.append(_check_of("service", False, f"{address} broke off: {' '.join(str(error).split())}"))
    finally:
        connection.close()
    return checks


def examine_node(agreement: Path, key: Path, state: Path) -> list[Check]:
    """Check that a node with these files can take part in the exchanges of an aggregator.

    Args:
        agreement, key, state: as the node's configuration names them.
    """
    for exchange in offered("exchanges", "agreement"):
        found: list[Check] = exchange.examine(agreement, key, state)
        return found
    return [_check_of("node", False, "no extension takes part in exchanges", "install fedamp with its extensions")]


def examine_site(name: str) -> list[Check]:
    """Check the folder of a node, where this process runs, and its way to the server; each failure names its cure.

    Args:
        name: of the node.
    """
    from fedamp.client.policy import Policy, policy_key

    follow, records = f"fedamp enroll {name} --admission {name}.admission", Path("data")
    checks = [_check_private(Path(name), f"fedamp enroll {name}"), _check_authority(Path("ca.crt"), follow)]
    told = read_regular("node.conf", TYPED).decode(errors="replace") if Path("node.conf").exists() else ""
    known = re.fullmatch(r"SUPERLINK=(\S+)\s*", told)
    checks.append(_check_of("server", known is not None, known[1] if known else "node.conf names none", follow))
    told = "docs/data.md tells the files of a machine with its own clients"
    found = list(records.glob("train*")) and (records / "federation.json").exists()
    checks.append(_check_of("records", bool(found), f"{records.absolute()}" if found else "data has no records", told))
    if (file := Path("policy.yaml")).exists():
        try:
            policy = Policy.read(file)
            tasks = "every task" if policy.tasks is None else f"the tasks {', '.join(sorted(policy.tasks)) or 'none'}"
            checks.append(
                Check.of_failure(
                    "policy", f"{tasks}, with at least {policy.least_people} people here, where --node-config has it"
                )
            )
            checks += [
                _check_of(name, *policy_key(name).examine(value, file.parent)) for name, value in policy.added.items()
            ]
        except DeploymentError as error:
            checks.append(_check_of("policy", False, str(error), "correct policy.yaml"))
    else:
        checks.append(Check("policy", "caution", "none: this node takes every task; write policy.yaml"))
    if known and checks[1].passed:  # it has one authority
        checks += examine_superlink(known[1], Path("ca.crt"))
    return checks


def examine_server(folder: Path) -> list[Check]:
    """Check the folder of a server; each failure names its cure.

    Args:
        folder: with ``keys``, ``proxy`` and the SuperLink's database.
    """
    certify, keys = "fedamp certify HOST", folder / "keys"
    checks = [_check_private(keys / f"{name}.key", certify) for name in ("superlink", "server")]
    for name in ("ca", "superlink", "server"):
        file = keys / f"{name}.crt"
        checks.append(_check_exists(f"{name}.crt", file, certify))
        if file.exists():
            until = time.time()  # of one that cannot be read
            with suppress(ValueError):
                until = x509.load_pem_x509_certificate(read_regular(file, TYPED)).not_valid_after_utc.timestamp()
            left = (until - time.time()) / 86400
            checks.append(_check_of(f"{name}.crt's validity", left >= LEAST_DAYS, f"{left:.0f} days left", certify))
    offline = not (keys / "ca.key").exists()
    found = "not on this machine" if offline else f"{keys / 'ca.key'}; move it to where no network is"
    checks.append(Check("authority's key", "pass" if offline else "caution", found))
    for name in ("ca.crt", "server.crt", "server.key"):
        ours, other = keys / name, folder / "proxy" / name
        same = ours.exists() and other.exists() and read_regular(ours, TYPED) == read_regular(other, TYPED)
        checks.append(
            _check_of(f"proxy's {name}", same, "as in keys" if same else "not as in keys", f"cp {ours} {other}")
        )
    for file in sorted(folder.glob("superlink.db*")):
        checks.append(_check_private(file, "umask 077 before the SuperLink starts"))
    listed = folder / "nodes.json"
    checks.append(_check_exists("nodes", listed, "fedamp admit site0.request --address HOST:PORT"))
    return checks


def _check_exists(name: str, file: Path, cure: str) -> Check:
    """Check that a file exists."""
    return _check_of(name, file.exists(), str(file) if file.exists() else f"there is no {file}", cure)


def _check_authority(file: Path, cure: str) -> Check:
    """Check that the file holds what the owner has compared: one authority."""
    from fedamp.extensions.deployment.membership import authority_of, fingerprint_of

    if not file.exists():
        return _check_exists("authority", file, cure)
    try:
        return Check.of_failure("authority", fingerprint_of(authority_of(read_regular(file, TYPED), file)))
    except (DeploymentError, OSError) as error:
        return _check_of("authority", False, str(error), cure)


def _check_private(file: Path, cure: str) -> Check:
    """Check that a file is there, and its owner's alone.

    Args:
        file: a key or a database.
        cure: told where it is missing.
    """
    if not file.exists():
        return _check_exists(file.name, file, cure)
    fine = file.stat().st_mode & 0o077 == 0
    return _check_of(file.name, fine, "its owner's alone" if fine else "others may read it", f"chmod 600 {file}")


def _forward_proxy(host: str) -> tuple[str, int] | None:
    """Return the proxy that ``HTTPS_PROXY`` names for this host, as Flower's own client reads it.

    Returns:
        Host and port; None: the way is direct.

    Raises:
        DeploymentError: the variable cannot be read.
    """
    found = getproxies().get("https", "")
    if not found or proxy_bypass(host):
        return None
    try:
        parts = urlsplit(found if "//" in found else f"//{found}")
        return str(parts.hostname), parts.port or 80
    except ValueError:
        raise DeploymentError(f"HTTPS_PROXY {found}: expected: as http://proxy.example.org:3128") from None


def _over_tls(connection: http.client.HTTPSConnection, host: str) -> list[Check]:
    """Check certificate, service, clock and open paths over one connection.

    Args:
        connection: over TLS, to the server or through a proxy.
        host: name that the certificate must hold.
    """
    certificate: Any = connection.sock.getpeercert()
    before = time.time()
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    now, skew = (before + time.time()) / 2, inf
    with suppress(ValueError):  # the server may not tell its time; if it does, it rounds down
        skew = abs(parsedate_to_datetime(answer.headers.get("date") or "").timestamp() + 0.5 - now)
    answers = {path: _request_status(connection, path) for path in INNER_PATHS}
    opened = ", ".join(f"{path} answers with {status}" for path, status in answers.items() if status not in REFUSALS)
    no_superlink = f"something answers /health with {answer.status}, no SuperLink"
    clock = f"{skew:.1f} s from the server's" if skew < inf else "the server did not send its time"
    anybody = "anyone who reaches this port can run code on the server and on every node"
    closing = f"{anybody}; only the proxy of docs/deployment.md may listen here"
    return [
        Check.of_failure("certificate", f"signed by the authority, for {host}"),
        _check_expiry("certificate's validity", [str(certificate["notAfter"])]),
        Check.of_failure("service", "a SuperLink that is ready", fail=None if answer.status == 200 else no_superlink),
        _check_of("clock", skew <= LARGEST_SKEW, clock, f"expected: {LARGEST_SKEW:g} s; set this machine's clock"),
        _check_of("closed", not opened, opened or "the nodes' API is open, and nothing else", closing),
    ]


def _request_status(connection: http.client.HTTPSConnection, path: str) -> int:
    """Send a valid request, an empty protobuf message, and return the status of the answer.

    A connection that is broken off is a refusal as well.
    """
    try:
        connection.request("POST", path, headers={"content-type": "application/protobuf"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (http.client.RemoteDisconnected, ConnectionError):  # a refusal as well
        connection.close()
        return REFUSALS[0]


def _check_versions() -> Check:
    """Check that Flower's version is supported."""
    ours, flower = importlib.metadata.version("fedamp"), importlib.metadata.version("flwr")
    fine = FLOWER[0] <= tuple(map(int, flower.split(".")[:2])) < FLOWER[1]
    words = (
        "every machine needs the same" if fine else "expected: flwr >= {}.{}, < {}.{}".format(*FLOWER[0], *FLOWER[1])
    )
    return _check_of("versions", fine, f"fedamp {ours}, flwr {flower}; {words}")


def _check_expiry(name: str, ends: list[str]) -> Check:
    """Check how long certificates still hold, from texts such as ``Nov 20 11:34:00 2027 GMT``."""
    left = min((ssl.cert_time_to_seconds(end) - time.time()) / 86400 for end in ends)
    return _check_of(name, left >= LEAST_DAYS, f"{left:.0f} days left", "make new ones, see docs/deployment.md")


def _check_of(name: str, fine: bool, found: str, otherwise: str = "") -> Check:
    """Make a check.

    Args:
        name: of the check.
        fine: whether it passes.
        found: what was seen.
        otherwise: told where it fails: the cure, or what is expected.
    """
    return Check(name, "pass", found) if fine else Check(name, "fail", "; ".join(filter(None, [found, otherwise])))


def _tls_context(root_certificates: Path | None) -> ssl.SSLContext:
    """Make a TLS context that trusts the authority.

    Raises:
        DeploymentError: the file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=root_certificates and regular(root_certificates))
    except OSError as error:
        reason = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise DeploymentError(f"--root-certificates {root_certificates}: cannot be used ({reason})") from None
    if root_certificates is not None and not context.get_ca_certs():
        raise DeploymentError(f"--root-certificates {root_certificates}: holds no authority's certificate")
    return context
