"""The manifests of packaging/kubernetes: valid, few rights, and each thing that they name is there."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import jsonschema
import pytest
import yaml

from tests.deployment.machines import DOCUMENTS, PAGE
from tests.deployment.test_services import options
from tests.documentation import ROOT, shell

FOLDER = ROOT / "packaging" / "kubernetes"
HOSPITAL = "hospital-site0"
SCHEMA = json.loads((ROOT / "tests" / "deployment" / "kubernetes.json").read_text())
CLAIMS = {"records"}  # the hospital's own


def documents(folder: str) -> list[dict]:
    """All objects of a folder and of its bases."""
    kustomization, found = customized(folder), []
    for name in kustomization["resources"]:
        file = FOLDER / folder / name
        base = str(file.resolve().relative_to(FOLDER))
        found += documents(base) if file.is_dir() else list(yaml.safe_load_all(file.read_text()))
    return found


def customized(folder: str) -> dict:
    return yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())


def generated(folder: str, kind: str) -> dict[str, set[str]]:
    """Names of the secrets or maps that a folder makes, each with its keys."""
    made = customized(folder).get(f"{kind}Generator", [])
    return {
        each["name"]: {name.partition("=")[0].rpartition("/")[2] for name in each.get("files", [])} for each in made
    }


def the(kind: str, folder: str) -> dict:
    [found] = [each for each in documents(folder) if each["kind"] == kind]
    return found


def pod(folder: str) -> dict:
    return the("StatefulSet", folder)["spec"]["template"]["spec"]


def containers() -> list[tuple[str, dict]]:
    return [(folder, each) for folder in ("server", HOSPITAL) for each in pod(folder)["containers"]]


def assert_valid(found: dict) -> None:
    wanted = {"$ref": f"#/$defs/{SCHEMA['kinds'][found['kind']]}", "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(wanted).validate(found)  # without a check of the schema itself, which takes seconds


@pytest.mark.parametrize("folder", ["server", HOSPITAL])
def test_all_objects_are_valid_for_kubernetes(folder):
    for each in documents(folder):
        assert_valid(each)
    with pytest.raises(jsonschema.ValidationError, match="replicsa"):
        assert_valid(the("StatefulSet", folder) | {"spec": the("StatefulSet", folder)["spec"] | {"replicsa": 1}})


def test_pods_give_few_rights_and_have_limits_and_probes():
    for folder in ("server", HOSPITAL):
        assert the("Namespace", folder)["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
        assert pod(folder)["automountServiceAccountToken"] is False
        around = pod(folder)["securityContext"]
        assert around.items() >= {"runAsNonRoot": True, "runAsUser": 64777, "fsGroup": 64777}.items()
        assert around["seccompProfile"] == {"type": "RuntimeDefault"}
    for _, each in containers():
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["limits"]["memory"]
        assert each["resources"]["requests"].keys() == {"cpu", "memory"}
        assert {"livenessProbe", "readinessProbe"} & each.keys()
        assert "umask 077" in each["command"][-1]


@pytest.mark.parametrize("folder", ["server", HOSPITAL])
def test_what_is_named_is_there(folder):
    secrets, maps, spec = generated(folder, "secret"), generated(folder, "configMap"), pod(folder)
    claims = {each["metadata"]["name"] for each in the("StatefulSet", folder)["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
    assert mounted == volumes.keys() | claims
    used = set()
    for volume in volumes.values():
        if "secret" in volume:
            assert volume["secret"]["secretName"] in secrets
            assert volume["secret"]["defaultMode"] == 0o440
            used.add(volume["secret"]["secretName"])
        elif "configMap" in volume:
            assert {item["key"] for item in volume["configMap"].get("items", [])} <= maps[volume["configMap"]["name"]]
            used.add(volume["configMap"]["name"])
        else:
            assert "emptyDir" in volume or volume["persistentVolumeClaim"]["claimName"] in CLAIMS
    for each in spec["containers"]:
        used |= {source["configMapRef"]["name"] for source in each.get("envFrom", [])}
        for mount in each["volumeMounts"]:
            writable = mount["name"] in claims or "emptyDir" in volumes[mount["name"]]
            assert writable != mount.get("readOnly", False), mount
    assert used == secrets.keys() | maps.keys()
    selector = the("StatefulSet", folder)["spec"]["selector"]["matchLabels"]
    assert selector == the("StatefulSet", folder)["spec"]["template"]["metadata"]["labels"]
    assert {image["name"] for image in customized("server")["images"]} == {"fedamp"}
    assert customized("node")["images"] == customized("server")["images"]


def test_only_the_proxys_port_is_open_and_the_superlink_has_the_loopback_address():
    service, [rule] = the("Service", "server")["spec"], the("NetworkPolicy", "server")["spec"]["ingress"]
    superlink, proxy = pod("server")["containers"]
    assert service["selector"] == the("StatefulSet", "server")["spec"]["selector"]["matchLabels"]
    assert "--host 127.0.0.1 --port 9090" in superlink["command"][-1]
    assert "ports" not in superlink
    [port] = proxy["ports"]
    assert (service["ports"][0]["targetPort"], proxy["readinessProbe"]["httpGet"]["port"]) == (port["name"],) * 2
    assert {port["containerPort"], service["ports"][0]["port"], rule["ports"][0]["port"]} == {8000}
    assert "listen 8000 ssl;" in (DOCUMENTS / "nginx.conf").read_text()
    assert the("NetworkPolicy", "server")["spec"]["egress"] == the("NetworkPolicy", HOSPITAL)["spec"]["ingress"] == []
    for folder in ("server", HOSPITAL):
        policy = the("NetworkPolicy", folder)["spec"]
        assert (policy["podSelector"], policy["policyTypes"]) == ({}, ["Ingress", "Egress"])


def test_a_hospital_has_a_namespace_of_its_own_and_reaches_its_server_alone():
    assert customized("server")["namespace"] == the("Namespace", "server")["metadata"]["name"]
    assert customized(HOSPITAL)["namespace"] == the("Namespace", HOSPITAL)["metadata"]["name"] == HOSPITAL
    [patch] = customized(HOSPITAL)["patches"]
    [operation], place = yaml.safe_load(patch["patch"]), the("NetworkPolicy", HOSPITAL)
    for part in operation["path"].split("/")[1:-1]:
        place = place[int(part)] if part.isdecimal() else place[part]
    assert place == {"cidr": "0.0.0.0/0"}
    assert operation["value"].endswith("/32")


def test_the_commands_are_those_of_the_page_and_flower_reads_them():
    superlink, node = pod("server")["containers"][0], pod(HOSPITAL)["containers"][0]
    read = "from flwr.{} import {} as made; import sys; made().parse_args(sys.argv[1:])"
    for each, title, parser in [
        (superlink, "server: start the SuperLink", ("superlink.cli.flower_superlink", "_parse_args_run_superlink")),
        (node, "node: start the SuperNode", ("supernode.cli.flower_supernode", "_parse_args_run_supernode")),
    ]:
        command = each["command"][-1]
        assert options(command) == options(shell(PAGE, title))
        first, _, *words = shlex.split(command.partition("exec ")[2])
        assert first == "fedamp"
        # In a process of its own: one that has imported a SuperNode takes itself for one.
        subprocess.run([sys.executable, "-c", read.format(*parser), *words], check=True)
    seen = {mount["mountPath"] for mount in superlink["volumeMounts"]}
    files = re.findall(r"keys/[\w.]+", superlink["command"][-1])
    assert "/federation/keys" in seen
    assert {file.rpartition("/")[2] for file in files} == generated("server", "secret")["superlink-keys"]
    assert {file.rpartition("/")[2] for file in re.findall(r"keys/[\w.]+", node["command"][-1])} == {"ca.crt", "node"}
    assert generated(HOSPITAL, "secret") == {"node-keys": {"ca.crt", "node"}}
    asked = set(re.findall(r"ssl_certificate(?:_key)? ([\w.]+);|proxy_ssl_trusted_certificate ([\w.]+);", CONFIGURED))
    assert {name for pair in asked for name in pair if name} == generated("server", "secret")["proxy-keys"]


CONFIGURED = (DOCUMENTS / "nginx.conf").read_text()


def test_kustomize_puts_the_files_together(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    shutil.copytree(DOCUMENTS / "app", tmp_path / "server" / "app")
    shutil.copy(DOCUMENTS / "nginx.conf", tmp_path / "server")
    (tmp_path / "server" / "hospitals.yaml").write_text("name: hospitals\n")
    (tmp_path / "server" / "keys").mkdir()
    for keys in generated("server", "secret").values():
        for name in keys:
            (tmp_path / "server" / "keys" / name).write_text(name)
    for name in ("ca.crt", "node"):
        (tmp_path / HOSPITAL / name).write_text(name)
    (tmp_path / HOSPITAL / "node.conf").write_text("SUPERLINK=fl.example.org:8000\n")
    for folder in ("server", HOSPITAL):
        command = ["kubectl", "kustomize", str(tmp_path / folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        built = list(yaml.safe_load_all(done.stdout))
        for each in built:
            assert_valid(each)
            assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == customized(folder)["namespace"]
        names = {each["metadata"]["name"] for each in built if each["kind"] in ("Secret", "ConfigMap")}
        [runs] = [each for each in built if each["kind"] == "StatefulSet"]
        assert all(f'"{name}"' in json.dumps(runs) for name in names), "generated names are those that are used"
        assert {each["image"].rpartition(":")[0] for each in runs["spec"]["template"]["spec"]["containers"]} >= {
            "registry.example.org/fedamp"
        }
