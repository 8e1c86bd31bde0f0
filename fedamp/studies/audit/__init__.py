"""Audits of the real server and client code: what a release leaks, and how far one unit's data move a round."""

from fedamp.studies.audit.attack import Audit, audit
from fedamp.studies.audit.canaries import RunAudit, audit_runs
from fedamp.studies.audit.sensitivity import Sensitivity, sensitivity

__all__ = ["Audit", "RunAudit", "Sensitivity", "audit", "audit_runs", "sensitivity"]
