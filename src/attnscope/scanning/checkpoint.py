"""A checkpoint: the survey of the batches done so far, with what it takes to go on.

Because surveys merge exactly and sequences are always drawn in the same order, a scan that went on from a checkpoint
gives the same survey, bit for bit, as one that was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.survey.survey import Survey

_EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class Restored:
    """What an interrupted scan had done."""

    survey: Survey
    sequences: int
    tokens: int

    @property
    def stack_tokens(self) -> dict[str, int]:
        return {stack["name"]: stack["tokens"] for stack in self.survey.provenance["model"]["stacks"]}


@dataclass
class Checkpoint:
    """Where a partial survey is kept; `path=None` keeps nothing."""

    path: Path | None
    plan: Mapping[str, Any]  # everything that decides the numbers: model, corpus, measures, sizes, seed
    _saved_at: float = field(default_factory=time.monotonic)

    def clear(self) -> None:
        """A new scan begins: what an earlier one left behind must not be taken for its work."""
        if self.path is not None:
            self._refuse_folder(self.path)
            self.path.unlink(missing_ok=True)

    def restore(self) -> Restored | None:
        """What is there to go on with; None where there is nothing."""
        if self.path is None or not self.path.exists():
            return None
        self._refuse_folder(self.path)
        partial = Survey.load(self.path)
        resume = partial.provenance.get("resume")
        if not isinstance(resume, dict):
            raise RefusalError(f"'{self.path}' is not an interrupted scan: remove it or scan without --resume.")
        changed = sorted(k for k in {*self.plan, *resume["plan"]} if self.plan.get(k) != resume["plan"].get(k))
        if changed:
            raise RefusalError(
                f"The interrupted scan in '{self.path}' had another {', '.join(changed)}: "
                "give the same options again, or scan without --resume."
            )
        return Restored(partial, int(resume["sequences"]), int(resume["tokens"]))

    @staticmethod
    def _refuse_folder(path: Path) -> None:
        if path.is_dir():
            raise RefusalError(f"'{path}' is a folder, and what is done is kept in a file there: remove or rename it.")

    @property
    def due(self) -> bool:
        """Whether half a minute has passed: a killed process loses no more than that."""
        return self.path is not None and time.monotonic() - self._saved_at > _EVERY_SECONDS

    def save(self, survey: Survey, sequences: int, tokens: int) -> None:
        """Write the survey of the sequences done so far."""
        if self.path is None:
            return
        resume = {"plan": dict(self.plan), "sequences": sequences, "tokens": tokens}
        Survey(provenance={**survey.provenance, "resume": resume}, cards=survey.cards, cells=survey.cells).save(
            self.path
        )
        self._saved_at = time.monotonic()
