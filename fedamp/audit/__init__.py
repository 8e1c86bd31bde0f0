"""A lower bound on epsilon, from attacking the real server and client code, beside what the accountant charges."""

from fedamp.audit.audit import Audit, audit

__all__ = ["Audit", "audit"]
