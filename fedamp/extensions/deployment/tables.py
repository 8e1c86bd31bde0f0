"""Show ``fedamp doctor`` as a table, at most 80 columns wide."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from fedamp.report.tables import checks_table, facts


def doctor_table(answer: Mapping[str, Any]) -> RenderableType:
    """Show the machine and, if it was asked for, the deployment."""
    rows = {"python": f"{answer['python']} on {answer['system']}"}
    rows |= {name: version or "not installed" for name, version in answer["packages"].items()}
    rows["cores"] = answer["cores"]
    for key in ("memory", "free_memory", "free_disk"):
        rows[key.replace("_", " ")] = f"{answer[f'{key}_bytes'] / 1e9:.1f} GB"
    rows["devices"] = ", ".join(answer["devices"])
    deployment = [checks_table("deployment", answer["deployment"])] if "deployment" in answer else []
    return Group(facts("this machine", rows), *deployment)
