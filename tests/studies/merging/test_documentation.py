"""docs/merging.md: its commands run, one after the other, and do what the page says."""

import json
import re
import shlex

from tests.documentation import commands, text

PAGE = "docs/merging.md"


def test_the_pages_commands_run(fedamp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in commands(PAGE):
        program, *arguments = shlex.split(command)
        assert program == "fedamp"
        answer = fedamp(*arguments)
        assert answer.status == 0, f"{command}\n{answer.err}"
    certificates = {
        name: json.loads((tmp_path / "runs" / name / "certificate.json").read_text())
        for name in ("selected", "given", "earlier", "combined")
    }
    for certificate in certificates.values():
        assert certificate["epsilon"]["upper"] <= certificate["budget_epsilon"]
    assert [model["round"] for model in certificates["earlier"]["inputs"]] == [3, 6]
    assert not certificates["combined"]["has_known_seed"]
    keys = set(re.findall(r"`(\w+)`", text(PAGE).partition("| key of `certificate.json` |")[2].partition("\n\n")[0]))
    documented = keys - {"certificate", "json", "ledger_sha256_with_salt", "from_json"}
    assert documented <= certificates["selected"].keys()
