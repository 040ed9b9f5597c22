"""A checkpoint: the survey of the batches of one shard done so far, with what it takes to go on.

Because surveys merge exactly and sequences are always drawn in the same order, a scan that went on from a checkpoint
gives the same survey, bit for bit, as one that was never interrupted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from attnscope.core.errors import RefusalError
from attnscope.core.interrupts import uninterrupted
from attnscope.records.decoding import FieldError
from attnscope.records.survey.store import remove_store
from attnscope.records.survey.survey import Survey
from attnscope.scanning.plan import Plan

_EVERY_SECONDS = 30.0


@dataclass
class Checkpoint:
    """Where a partial survey is kept; `path=None` keeps nothing."""

    path: Path | None
    plan: Plan
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def shards(self) -> Path | None:
        """Where the shards gather that are finished, beside the one that is not."""
        return None if self.path is None else shards_beside(self.path)

    def clear(self) -> None:
        """A new scan begins: what an earlier one left behind must not be taken for its work."""
        if self.path is not None:
            self.refuse_folder(self.path)
            self.path.unlink(missing_ok=True)
            remove_store(shards_beside(self.path))

    def restore(self) -> Survey | None:
        """What there is to go on with; None where there is nothing."""
        if self.path is None or not self.path.exists():
            return None
        self.refuse_folder(self.path)
        partial = Survey.load(self.path)
        try:
            plan = Plan.from_json(partial.provenance.get("resume"))
            whole = {"sequences", "tokens"} <= partial.provenance["corpus"].keys()
            stacks = partial.provenance["model"]["stacks"]
        except (FieldError, KeyError) as error:
            raise RefusalError(
                f"'{self.path}' is not an interrupted scan of this version ({error}): remove it, or scan without "
                "--resume."
            ) from error
        if not whole or any("tokens" not in stack for stack in stacks):
            raise RefusalError(f"'{self.path}' does not say what was read: remove it, or scan without --resume.")
        changed = self.plan.differences(plan)
        if changed:
            # The fingerprint of the sequences follows from other settings: it is named only where nothing else is.
            follows = ("tokens", "shards", "shard_tokens")
            changed = tuple(name for name in changed if name not in follows) or ("choice of sequences",)
            raise RefusalError(
                f"The interrupted scan in '{self.path}' had another {', '.join(changed).replace('_', ' ')}: "
                "give the same options again, or scan without --resume."
            )
        return partial

    @staticmethod
    def refuse_folder(path: Path) -> None:
        """What is done is kept in a file: a folder of its name is somebody's."""
        if path.is_dir():
            raise RefusalError(f"'{path}' is a folder, and what is done is kept in a file there: remove or rename it.")

    @property
    def due(self) -> bool:
        """Whether half a minute has passed: a killed process loses no more than that."""
        return self.path is not None and time.monotonic() - self._saved_at > _EVERY_SECONDS

    def save(self, survey: Survey, shard: int = 0) -> None:
        """Write the survey of what is done so far of a shard."""
        if self.path is None:
            return
        kept = {**survey.provenance, "resume": self.plan.to_json(), "shard": shard}
        with uninterrupted():
            replace(survey, provenance=kept).save(self.path)
        self._saved_at = time.monotonic()

    def finished(self) -> None:
        """The shard that was kept here is in the store now."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def shards_beside(path: Path) -> Path:
    """`survey.partial.json` has its shards in `survey.partial.shards`."""
    return path.with_name(f"{path.name.removesuffix('.json')}.shards")
