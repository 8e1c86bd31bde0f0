"""What the real server and client code leaks, and how far one unit's data move it, beside what is charged."""

from fedamp.studies.audit.audit import Audit, audit
from fedamp.studies.audit.sensitivity import Sensitivity, sensitivity

__all__ = ["Audit", "Sensitivity", "audit", "sensitivity"]
