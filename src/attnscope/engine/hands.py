"""Whose hands do the work: so many processes here, or a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from attnscope.core.errors import RefusalError, meant
from attnscope.engine.crew import Crew, Job

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Hands:
    """`workers` None leaves it to the engine: one process here, all cores of a cluster."""

    workers: int | None = None
    engine: str = "local"
    address: str | None = None
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise RefusalError(
                f"There is no engine '{self.engine}': choose one of {', '.join(ENGINES)}.{meant(self.engine, ENGINES)}"
            )
        if self.engine == "local" and (self.address is not None or self.gpus_per_worker):
            raise RefusalError("An address and GPUs for each worker belong to a cluster: add --engine ray.")
        if self.workers is not None and self.workers < 1:
            raise RefusalError(f"{self.workers} workers do nothing: pass --workers 1 or more.")
        if self.gpus_per_worker < 0:
            raise RefusalError(f"{self.gpus_per_worker:g} GPUs for each worker cannot be: pass 0 or more.")

    def crew(self, job: Job) -> AbstractContextManager[Crew]:
        if self.engine == "ray":
            from attnscope.engine.on_ray import OnRay

            return OnRay(job, self.workers, self.address, self.gpus_per_worker)
        from attnscope.engine.processes import Processes

        return Processes(job, self.workers or 1)
