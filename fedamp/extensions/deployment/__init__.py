"""Manage who belongs to a deployment, by certificates and keys; and check its machines (docs/deployment.md).

The commands are ``fedamp certify`` and ``fedamp admit`` on the server, ``fedamp enroll`` on a node
(:mod:`~fedamp.extensions.deployment.membership`), and ``fedamp doctor`` on both
(:mod:`~fedamp.extensions.deployment.doctor`). They use Flower's SuperLink as it is. No key of a scenario is added, and
no cost depends on them.
"""

from fedamp.extension import Extension

extension = Extension(
    "deployment",
    commands={
        "doctor": "fedamp.extensions.deployment.commands:doctor",
        "certify": "fedamp.extensions.deployment.membership:certify",
        "enroll": "fedamp.extensions.deployment.membership:enroll",
        "admit": "fedamp.extensions.deployment.membership:admit",
    },
    help_groups=dict.fromkeys(("doctor", "certify", "enroll", "admit"), "Deploy"),
)
