"""Audits of the real server and client code: what a release leaks, and how far one unit's data move a round."""

from fedamp.studies.audit.attack import audit
from fedamp.studies.audit.bound import Audit
from fedamp.studies.audit.canaries import audit_runs
from fedamp.studies.audit.sensitivity import Sensitivity, sensitivity

__all__ = ["Audit", "Sensitivity", "audit", "audit_runs", "sensitivity"]
