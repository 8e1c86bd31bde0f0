"""Personal layers: parameters that stay with their client (``model.local``) are kept from round to round."""

from fedamp.extension import Extension

extension = Extension(
    name="personal",
    around_run={"personal": "fedamp.extensions.personal.places:kept"},
    task_keys={
        "personal": "fedamp.extensions.personal.keys:PERSONAL",
        "checkpoint_every": "fedamp.extensions.personal.keys:CHECKPOINT_EVERY",
    },
    local_parameters={"personal": "fedamp.extensions.personal.layers:PersonalParameters"},
)
