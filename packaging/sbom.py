"""The bill of materials of a wheel, in CycloneDX 1.6: python packaging/sbom.py WHEEL [REPORT] writes sbom.cdx.json.

It lists what the wheel with its extra ``train`` installs under constraints.txt, on this system: versions, SHA-256,
licences as the packages state them, and who needs whom. REPORT is what ``pip install --report`` wrote; without it, pip
is asked. The same report gives the same bytes.
"""

import json
import subprocess
import sys
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def asked(wheel: Path) -> dict[str, Any]:
    """pip's report of an installation, of which nothing but metadata is downloaded."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run(
        [*command, *constraints, f"fedamp[train] @ {wheel.resolve().as_uri()}"], check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def component(item: dict[str, Any]) -> Component:
    about, licences = item["metadata"], LicenseFactory()
    name, version = canonicalize_name(about["name"]), about["version"]
    stated = about.get("license_expression") or (about.get("license") or "").strip().partition("\n")[0]
    stated = "Apache-2.0" if name == "fedamp" else stated  # its metadata hold the whole licence
    sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}@{version}",
        purl=PackageURL("pypi", name=name, version=version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
        licenses=[licences.make_from_string(stated)] if stated not in ("", "UNKNOWN") else [],
    )


def bill(report: dict[str, Any], wheel: Path) -> Bom:
    made = {canonicalize_name(item["metadata"]["name"]): component(item) for item in report["install"]}
    latest = max(entry.date_time for entry in zipfile.ZipFile(wheel).infolist())
    bom = Bom(components=[each for name, each in made.items() if name != "fedamp"])
    bom.metadata.component, bom.metadata.timestamp = made["fedamp"], datetime(*latest, tzinfo=UTC)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, str(sorted(str(each.bom_ref) for each in made.values())))
    for item in report["install"]:
        about, needed = item["metadata"], []
        for text in about.get("requires_dist", []):
            need = Requirement(text)
            extras = ["", *item.get("requested_extras", [])]
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                needed.append(made.get(canonicalize_name(need.name)))
        bom.register_dependency(made[canonicalize_name(about["name"])], filter(None, needed))
    return bom


def main() -> None:
    wheel = Path(sys.argv[1])
    report = json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else asked(wheel)
    text = JsonV1Dot6(bill(report, wheel)).output_as_string(indent=1)
    if (wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        sys.exit(f"error: the bill of materials is not CycloneDX: {wrong}")
    file = wheel.with_name("sbom.cdx.json")
    file.write_text(text + "\n")
    print(file)


if __name__ == "__main__":
    main()
