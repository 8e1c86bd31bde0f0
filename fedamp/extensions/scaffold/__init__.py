"""Correct the drift of local training by control variates: SCAFFOLD (``client.scaffold``), option II.

Karimireddy et al. 2020; private by Noble, Bellet, Dieuleveut 2022. The server's variate follows from the noisy sums
that are released anyway, and a client's own one stays with it. So it costs no privacy, and needs no second noise.
docs/research/schemes.md, "Control variates", has the proof.

:mod:`~fedamp.extensions.scaffold.section` is the key, :mod:`~fedamp.extensions.scaffold.server` what the server
remembers and sends, :mod:`~fedamp.extensions.scaffold.variates` what a client does with it, and
:mod:`~fedamp.extensions.scaffold.places` tells the workers of a simulation the file of all clients' variates. A node of
a deployment keeps none, and refuses such a task.
"""

from fedamp.extension import Extension

extension = Extension(
    name="scaffold",
    sections={"client.scaffold": "fedamp.extensions.scaffold.section:SCAFFOLD"},
    server_rules={"client.scaffold": "fedamp.extensions.scaffold.server:with_variate"},
    around_run={"scaffold": "fedamp.extensions.scaffold.places:kept"},
    task_keys={"variates": "fedamp.extensions.personal.keys:PERSONAL"},
    local_parameters={"variates": "fedamp.extensions.scaffold.variates:ClientVariates"},
)
