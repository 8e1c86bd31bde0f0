"""Run the job in NVFlare's simulator; export it for a real deployment."""

from pathlib import Path

from fedamp_nvflare import TASK, PrivateController, PrivateExecutor
from nvflare.job_config.api import FedJob

HERE = Path(__file__).resolve().parent

job = FedJob("hospitals", min_clients=2)
job.to_server(PrivateController(f"{HERE}/hospitals.yaml", out=f"{HERE}/run"))
for site, units in {"site-1": "0-47", "site-2": "48-59"}.items():
    job.to(PrivateExecutor(hosts=units), site, tasks=[TASK])
job.simulator_run(f"{HERE}/work")
