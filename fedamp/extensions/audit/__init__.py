"""Audits of the real server and client code: what a release leaks, and how far one unit's data move a round."""

from fedamp.extensions.audit.attack import audit
from fedamp.extensions.audit.bound import Audit
from fedamp.extensions.audit.canaries import audit_runs
from fedamp.extensions.audit.sensitivity import Sensitivity, sensitivity

__all__ = ["Audit", "Sensitivity", "audit", "audit_runs", "sensitivity"]
