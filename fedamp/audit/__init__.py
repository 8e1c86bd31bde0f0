"""A lower bound on epsilon, from attacking the real server and client code, beside what the accountant charges."""

from fedamp.audit.audit import audit
from fedamp.audit.report import Audit, audit_table, progress_bar

__all__ = ["Audit", "audit", "audit_table", "progress_bar"]
