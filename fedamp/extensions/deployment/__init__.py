"""Who belongs to a deployment, by certificates and keys; and what a machine of it lacks."""

from fedamp.extension import Extension

extension = Extension(
    "deployment",
    commands={
        "certify": "fedamp.extensions.deployment.membership:certify",
        "enroll": "fedamp.extensions.deployment.membership:enroll",
        "admit": "fedamp.extensions.deployment.membership:admit",
        "doctor": "fedamp.extensions.deployment.commands:doctor",
    },
    follows={"certify": "check", "enroll": "certify", "admit": "enroll", "doctor": "verify"},
)
