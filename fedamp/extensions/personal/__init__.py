"""Keep personal layers: parameters that stay with their client (``model.local``) go on from round to round.

The core trains such parameters from the received values in every round. With this extension each client goes on from
what it trained in its last round, as in federated learning with personal layers (Arivazhagan et al. 2019). They are
never sent or clipped, so they cost no privacy while they stay; docs/models.md explains the key.

:mod:`~fedamp.extensions.personal.places` tells the workers of a simulation the file in the run folder, by keys of the
task (:mod:`~fedamp.extensions.personal.keys`). :mod:`~fedamp.extensions.personal.layers` reads and writes it. A
simulation on one machine is needed; a node of a deployment refuses such a task.
"""

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
