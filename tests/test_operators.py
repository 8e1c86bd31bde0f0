"""What operators load into other programs: alarms for Prometheus, and a board for Grafana."""

import json
import re
import subprocess

import jsonschema
import pytest
import yaml

from fedamp.extensions.trackers.observers import METRICS
from tests.documentation import ROOT, text
from tests.tools import PROMTOOL

RULES, BOARD = ROOT / "packaging" / "prometheus" / "rules.yaml", ROOT / "packaging" / "grafana" / "board.json"
TEXT, POSITION = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0, "maximum": 24}
TARGET = {"type": "object", "required": ["refId", "datasource", "expr", "legendFormat"]}
# What Grafana needs of a board to load it, of its own schema (kinds/dashboard, version 39).
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "schemaVersion": {"const": 39},
        "panels": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "title", "type", "datasource", "gridPos", "targets", "fieldConfig"],
                "properties": {
                    "title": TEXT,
                    "type": {"enum": ["stat", "gauge", "timeseries"]},
                    "datasource": {"const": {"type": "prometheus", "uid": "${source}"}},
                    "gridPos": {
                        "type": "object",
                        "properties": dict.fromkeys("xywh", POSITION),
                        "required": [*"xywh"],
                        "additionalProperties": False,
                    },
                    "targets": {"type": "array", "minItems": 1, "items": TARGET},
                },
            },
        },
    },
}


def rules() -> list[dict]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def board() -> dict:
    return json.loads(BOARD.read_text())


def expressions() -> list[str]:
    """Of all alarms and panels; Grafana's variables as it fills them in."""
    shown = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + [each.replace("$instance", ".+") for each in shown]


def names_of(expression: str) -> set[str]:
    """The metrics that an expression of Prometheus reads: names that no bracket follows, outside texts and labels."""
    plain = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:on|by|ignoring|without) *\([^)]*\)', " ", expression)
    return set(re.findall(r"\b[a-zA-Z_]\w*\b(?! *\()", plain)) - {"and", "or", "unless", "bool", "offset"}


def test_alarms_and_panels_read_metrics_that_a_run_serves():
    for expression in expressions():
        assert names_of(expression) <= METRICS.keys() | {"up"}, expression
    assert set().union(*map(names_of, expressions())) >= METRICS.keys(), "no metric is left out"


def test_each_alarm_says_what_to_do():
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "do"}, rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
    page = text("docs/operations.md").partition("## Monitor runs")[2].partition("\n## ")[0]
    listed = re.findall(r"`([A-Z]\w+)`", page)
    assert listed == [rule["alert"] for rule in rules()]


def test_grafana_can_load_the_board():
    jsonschema.validate(board(), SCHEMA)
    panels, taken = board()["panels"], set()
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert x + w <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert {each["name"] for each in board()["templating"]["list"]} == {"source", "instance"}


def prometheus_says(*arguments: object) -> str:
    if PROMTOOL is None:
        pytest.skip("there is no promtool here, and `make install` could get none")
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_understands_all_expressions(tmp_path):
    assert f"SUCCESS: {len(rules())} rules found" in prometheus_says("check", "rules", RULES)
    shown = [{"record": f"shown_{number}", "expr": each} for number, each in enumerate(expressions())]
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump({"groups": [{"name": "shown", "rules": shown}]}))
    assert f"SUCCESS: {len(shown)} rules found" in prometheus_says("check", "rules", tmp_path / "shown.yaml")


def test_alarms_are_raised_when_they_should_be_and_not_before():
    played = yaml.safe_load((RULES.parent / "rules_test.yaml").read_text())["tests"]
    raised = {each["alertname"] for test in played for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert raised == {rule["alert"] for rule in rules()}
    assert "SUCCESS" in prometheus_says("test", "rules", RULES.parent / "rules_test.yaml")
