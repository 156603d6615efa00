"""Many machines: every run a Ray task with a GPU of its own, all in one results folder that they share.

Start Ray on the machines (`ray start --head`, then `ray start --address HEAD:6379`), and give its address. A
task whose worker or machine dies is started again elsewhere and goes on from the run's last state.
"""

import logging
import time
from collections import Counter
from typing import Any

from intnacl.errors import InputError, missing_extra
from intnacl.paper.attempts import TRIES, attempt
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress
from intnacl.paper.workers import POLL_S, Session
from intnacl.training.stop import Stop


def connect(address: str) -> Any:
    """Ray, connected to a running cluster."""
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "ray", "--ray") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise InputError(
                f"--ray {address}: no Ray cluster answers there. `ray start --head` starts one."
            ) from error
    return ray


def device_of(address: str, device: str) -> str:
    """The device of every task: a GPU where the cluster has some, unless told otherwise."""
    if device != "auto":
        return device
    return "cuda" if connect(address).cluster_resources().get("GPU", 0) else "cpu"


def run_on_ray(session: Session, address: str, device: str, *, stop: Stop, progress: Progress) -> None:
    """Submit every run as soon as it is free; those that are busy elsewhere are submitted again.

    One that fails again and again and leaves no word of it in the results folder, because its machine cannot
    write there, is given up.
    """
    ray = connect(address)
    task = ray.remote(max_retries=3, num_cpus=1, num_gpus=int(device.startswith("cuda")))(_task)
    pending: dict[Any, Job] = {}
    failed: Counter[str] = Counter()
    while not stop.due():
        progress.update()
        at_work = {job.name for job in pending.values()}
        left = session.open_jobs()
        names = {job.name for job in left}
        for job in session.free_jobs(job for job in left if failed[job.name] < TRIES + 2):
            if job.name not in at_work and job.parent not in names:
                pending[task.remote(job, session, device)] = job
        if not pending:
            break
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_S)
        outcomes = [
            (pending[reference].name, _outcome(ray, reference, pending.pop(reference))) for reference in ready
        ]
        failed.update(name for name, outcome in outcomes if outcome == "failed")
        if not pending or any(outcome == "busy" for _, outcome in outcomes):
            time.sleep(POLL_S)
    _cancel(ray, list(pending))
    progress.update(force=True)


def _task(job: Job, session: Session, device: str) -> str:
    with Stop(session.minutes_left()) as stop:
        return attempt(job, session.results, device=device, stop=stop, session=session.name)


def _outcome(ray: Any, reference: Any, job: Job) -> str:
    """A task that Ray itself gave up left its tries in the run's folder: the next attempt gives it up."""
    try:
        return str(ray.get(reference))
    except ray.exceptions.RayError as error:
        print(f"{job.name}: {str(error).splitlines()[0]}", flush=True)
        return "failed"


def _cancel(ray: Any, references: list[Any]) -> None:
    """Interrupt tasks, which save and stop, and wait for them for a while."""
    for reference in references:
        ray.cancel(reference)
    if references:
        ray.wait(references, num_returns=len(references), timeout=60)
