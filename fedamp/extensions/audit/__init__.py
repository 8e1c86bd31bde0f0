"""Audits attack the real server and client code, and bound from below what a release leaks."""

from fedamp.extension import Extension

extension = Extension(
    name="audit",
    commands={"audit": "fedamp.extensions.audit.commands:audit"},
    follows={"audit": "merge"},
    sections={"privacy.canaries": "fedamp.extensions.audit.section:CANARIES"},
    around_run={"audit": "fedamp.extensions.audit.kept_models:kept"},
)
