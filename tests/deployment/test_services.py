"""Services that come back: the unit files, and a federation of them of which the SuperLink is killed."""

import os
import re
import shutil
import subprocess

import jsonschema
import pytest
import yaml

from tests.deployment.machines import DOCUMENTS, NODES, PAGE, free_port, wait
from tests.deployment.test_processes import assert_equals_simulation, wait_for_end, wait_for_round, write_scenario
from tests.deployment.units import Unit, settings
from tests.documentation import shell
from tests.server.plays import rounds_of
from tests.tools import NFT, NGINX

UNITS = sorted(path.name for path in (DOCUMENTS / "systemd").glob("*.service"))


def test_systemd_understands_the_unit_files(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    for file in UNITS:
        # What is started need not be here for the file to be right.
        text = (DOCUMENTS / "systemd" / file).read_text()
        for program in ("/opt/fedamp/bin/fedamp", "/usr/sbin/nginx"):
            text = text.replace(program, "/bin/true")
        (tmp_path / file).write_text(text.replace("/usr/sbin/nft", "/bin/true"))
    files = [str(tmp_path / file) for file in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_services_come_back_whatever_they_end_with_and_have_users_of_their_own():
    users = set()
    for file in UNITS:
        unit = settings(file)
        assert unit["Restart"] == ["always"]
        assert unit["StartLimitIntervalSec"] == ["0"]
        assert unit["NoNewPrivileges"] == ["yes"]
        users.update(unit["User"])
    assert users == {"fedamp", "fedamp-proxy"}


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<=\s)--[a-z-]+", text))


COMPOSE = {name: yaml.safe_load((DOCUMENTS / f"compose-{name}.yaml").read_text()) for name in ("server", "node")}
SERVICES = {name: service for file in COMPOSE.values() for name, service in file["services"].items()}
TEXT, TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}
# What these files use of the Compose specification.
SERVICE = {
    "image": {"type": "string", "pattern": r"^(fedamp|[a-z/-]+:[0-9.]+[a-z0-9.-]*@sha256:[0-9a-f]{64})$"},
    "restart": {"const": "always"},
    "read_only": {"const": True},
    "init": {"type": "boolean"},
    "cap_drop": {"const": ["ALL"]},
    "security_opt": {"const": ["no-new-privileges:true"]},
    "tmpfs": TEXTS,
    "command": TEXTS,
    "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^\./[^:]*:/[^:]+(:ro)?$"}},
    "ports": TEXTS,
    "env_file": TEXTS,
    "environment": {"type": "object", "additionalProperties": TEXT},
    "networks": {"type": ["array", "object"]},
    "depends_on": {"type": "object"},
    "healthcheck": {
        "type": "object",
        "properties": {"test": TEXTS, "interval": TEXT, "start_period": TEXT},
        "required": ["test", "interval"],
        "additionalProperties": False,
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "networks": {"type": "object"},
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": SERVICE,
                "additionalProperties": False,
                "required": ["image", "restart", "read_only", "cap_drop", "security_opt", "command", "healthcheck"],
            },
        },
    },
}


def test_unit_files_and_compose_files_start_what_the_page_starts():
    superlink, node = (shell(PAGE, title) for title in ("server: start the SuperLink", "node: start the SuperNode"))
    for name, page in [("superlink", superlink), ("supernode@", node)]:
        assert options(settings(f"fedamp-{name}.service")["ExecStart"][0]) == options(page)
    assert options(SERVICES["superlink"]["command"][-1]) == options(superlink)
    assert options(SERVICES["node"]["command"][-1]) == options(node)
    assert "fedamp node" in SERVICES["node"]["command"][-1]


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_files_are_valid_and_give_few_rights(name):
    jsonschema.validate(COMPOSE[name], SCHEMA)
    assert list(SERVICES) == ["superlink", "proxy", "node"]
    for service in COMPOSE[name]["services"].values():
        assert "umask 077" in service["command"][-1]
    recipe = (DOCUMENTS / "Dockerfile").read_text()
    assert re.search(r"^USER fedamp$", recipe, re.MULTILINE)
    assert re.search(r"^FROM python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", recipe, re.MULTILINE)
    assert recipe.count("--constraint") == recipe.count("pip install") == 2


def test_a_container_sees_the_files_that_it_needs_and_no_others():
    seen = {name: {volume.split(":")[0] for volume in service["volumes"]} for name, service in SERVICES.items()}
    keys = {f"./keys/{file}" for file in ("ca.crt", "superlink.crt", "superlink.key")}
    assert seen["superlink"] == {"./app", "./data", "./hospitals.yaml", "./runs", "./state"} | keys
    assert seen["proxy"] == {"./proxy"}
    assert seen["node"] == {"./ca.crt", "./${NODE}", "./data", "./state"}
    written = {
        volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"] if ":ro" not in volume
    }
    assert written == {"./runs", "./state"}


def test_in_the_compose_file_only_the_proxy_reaches_the_superlink():
    services, networks = COMPOSE["server"]["services"], COMPOSE["server"]["networks"]
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    assert {name for name, service in services.items() if "inside" in service["networks"]} == {"superlink", "proxy"}
    assert list(services["superlink"]["networks"]) == ["inside"]
    assert networks["inside"]["internal"] is True
    address = services["superlink"]["networks"]["inside"]["ipv4_address"]
    assert f"127.0.0.1:9090/{address}:9090/" in services["proxy"]["command"][-1]
    assert "server 127.0.0.1:9090;" in (DOCUMENTS / "nginx.conf").read_text()


@pytest.fixture
def units(machines, request):
    """The services of a deployment, on this machine."""
    places = {
        "/opt/fedamp/bin/": "",
        "/usr/sbin/nginx": NGINX,
        "/run/fedamp-proxy": str(machines.server / "proxy"),
        "${CREDENTIALS_DIRECTORY}": str(machines.server / "proxy"),
        "${SUPERLINK}": f"127.0.0.1:{machines.port}",
        "9090": str(machines.inner_port),
    }
    environment = machines.environment() | {"FLWR_LOG_LEVEL": "INFO"}
    running: dict[str, Unit] = {}

    def start(name: str, file: str, **more: str) -> None:
        folder = machines.folder / (name if name in NODES else "server")
        all_places = places | {"/var/lib/fedamp": str(folder), "%i": name, "9094": str(free_port())}
        running[name] = Unit(file, all_places, folder, environment, machines.folder / f"{name}.log")

    start("superlink", "fedamp-superlink.service")
    start("proxy", "fedamp-proxy.service")
    machines.wait_for_superlink()
    machines.admit_nodes()
    for name in NODES:
        start(name, "fedamp-supernode@.service")
    yield running
    for unit in running.values():
        unit.stop()


@pytest.mark.slow
def test_a_federation_whose_processes_are_killed_comes_back_and_the_run_goes_on(machines, units):
    raw = write_scenario(machines, rounds=4)
    wait(lambda: machines.connected() == 3, 180, "three nodes", every=1)
    machines.start_run(known_seed=True)
    wait_for_round(machines, 1, 300)
    for name in ("superlink", "proxy", "site2"):
        units[name].kill()
    wait(lambda: units["superlink"].ends == [-9], 10, "its end")
    assert len(rounds_of(machines.server / "run")) < 3
    machines.wait_for_superlink()
    wait(lambda: machines.connected() == 3, 240, "three nodes to be back", every=2)
    machines.start_run(known_seed=True, resume=True)
    wait_for_end(machines, 600)
    assert len(rounds_of(machines.server / "run")) == 4
    # Until Flower has missed the killed node for a minute, it counts as zero and is refused.
    lines = rounds_of(machines.server / "run")
    away = {line["round"] for line in lines if line["reported"] < line["scheduled"]}
    assert not away & {1, 4}
    assert_equals_simulation(machines, raw, away)
    assert units["proxy"].ends == units["superlink"].ends == [-9]  # and not again
    assert units["site2"].ends[0] == -9


LISTEN = (
    "import signal, socket; kept = [socket.create_server(('127.0.0.1', port)) for port in (9090, 9094)]; signal.pause()"
)
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=60)"


def test_other_users_of_a_machine_do_not_reach_flowers_ports(tmp_path):
    if NFT is None:
        pytest.skip("there is no nft here, and `make install` could get none")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("nobody may make network namespaces here")
    group = 64777  # stands for fedamp's, which is not on this machine
    rules = (DOCUMENTS / "systemd" / "loopback.nft").read_text().replace("skgid != fedamp", f"skgid != {group}")
    (tmp_path / "rules").write_text(rules)
    python = "/usr/bin/python3"  # the tests' own may lie where other users may not look
    script = f"""
        ip link set lo up; {NFT} -f {tmp_path}/rules; {NFT} -f {tmp_path}/rules  # twice, as two services do
        {python} -c "{LISTEN}" &
        until {python} -c "{CONNECT}" 9094 2>/dev/null; do sleep 0.1; done  # as root, who may
        for who in "64778 64778" "64779 {group}" "0 0"; do for port in 9090 9094; do
            set -- $who
            as_them="setpriv --reuid $1 --regid $2 --clear-groups"
            $as_them {python} -c "{CONNECT}" $port 2>/dev/null && echo open || echo shut
        done; done; kill %1
    """
    done = subprocess.run(["unshare", "-n", "bash", "-uc", script], capture_output=True, text=True)
    assert done.stdout.split() == ["shut", "shut", "open", "open", "open", "open"], done.stderr
