"""The image: what its Dockerfile leaves out, and the scan that looks for it."""

import importlib.util
import os
import re

import pytest

from tests.deployment.machines import DOCUMENTS
from tests.documentation import ROOT

IMAGES = ROOT / "packaging" / "images"
KEY = "-----BEGIN {}PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n-----END {}PRIVATE KEY-----\n"


@pytest.fixture(scope="module")
def scan():
    spec = importlib.util.spec_from_file_location("scan", IMAGES / "scan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRONG = {
    "usr/bin/passwd": "setuid or setgid",
    "root/.cache/pip/http/a": "a cache",
    "var/cache/apt/pkgcache.bin": "a cache",
    "opt/app/.git/config": "a checkout",
    "usr/local/lib/python3.11/site-packages/pip/__init__.py": "an installer of Python",
    "usr/local/lib/python3.11/site-packages/tests/test_a.py": "fedamp's tests",
    "usr/bin/gcc": "a compiler",
    "srv/all": "writable by all",
    "federation/site0": "a private key",
    "etc/keys/tls.pem": "a private key",
    "tmp/fedamp.whl": "left over from the build",
    "etc/shadow: root": "a password",
}


def test_the_scan_finds_what_does_not_belong_and_nothing_else(scan, tmp_path, capsys):
    fine = "usr/local/lib/python3.11/site-packages/fedamp/__init__.py", "usr/bin/python3", "etc/passwd", "docs/keys.txt"
    for name in (*WRONG, *fine):
        file = tmp_path / name.partition(":")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("words about -----BEGIN PRIVATE KEY----- in a line\n")
        file.chmod(0o644)
    (tmp_path / "etc/shadow").write_text("root:$6$aa:1:\ndaemon:*:1:\nfedamp:!:1:\n")
    (tmp_path / "federation/site0").write_text(KEY.format("OPENSSH ", "OPENSSH "))
    (tmp_path / "etc/keys/tls.pem").write_text(KEY.format("", ""))
    (tmp_path / "usr/bin/passwd").chmod(0o4755)
    (tmp_path / "srv/all").chmod(0o666)
    os.symlink("/etc/shadow", tmp_path / "etc/other")
    assert {place: what for what, place in scan.findings(tmp_path)} == WRONG
    assert scan.main(tmp_path) == 1
    assert f"{len(WRONG)} findings" in capsys.readouterr().out
    clean = tmp_path / "clean"
    (clean / "usr").mkdir(parents=True)
    assert scan.main(clean) == 0


def test_the_dockerfile_leaves_out_what_the_scan_looks_for():
    recipe = (DOCUMENTS / "Dockerfile").read_text()
    for step in ("pip uninstall --yes", "-perm /6000", "rm -rf /tmp/*"):
        assert step in recipe
    assert re.findall(r"^USER (.*)$", recipe, re.MULTILINE) == ["fedamp"]
    assert "--from localhost/base" in (IMAGES / "build.sh").read_text()


@pytest.mark.slow
def test_an_image_that_was_built_has_nothing_that_does_not_belong(scan):
    """``sh packaging/images/build.sh`` builds one; ``FEDAMP_IMAGE`` names its files."""
    image = os.environ.get("FEDAMP_IMAGE")
    if image is None:
        pytest.skip("FEDAMP_IMAGE names no image")
    assert list(scan.findings(scan.Path(image))) == []
    assert sum(scan.sizes(scan.Path(image)).values()) < 2.0e9  # torch for processors is 0.7e9 of them
