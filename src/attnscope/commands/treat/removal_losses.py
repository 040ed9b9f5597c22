"""The losses of a model without some heads, each set and text measured once, and kept on disk when work is stopped.

    with losses_without_heads(loss, sites, {"held_out": batches}, folder) as losses:
        losses("held_out", [(2, 0), (3, 1)])        # one loss for each sequence, without these two heads
        losses.change("held_out", [(2, 0)])         # the rise over the whole model, with its interval

A head is taken out by setting its rows of the output projection to zero. It then writes nothing (zero, not its mean),
and everything after it is computed again. The bias of the projection belongs to no head and stays.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.commands.treat.arms import sequence_losses
from attnscope.commands.treat.halves import SequenceLoss
from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.core.progress import uninterrupted
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.editing.surgery import without_heads
from attnscope.stats.intervals import Interval, paired_interval

Place = tuple[int, int]
FILE = "removals.json"
SAVED_EVERY = 20.0  # seconds


@dataclass
class RemovalLosses:
    """Measure losses of named texts without sets of heads, and remember them."""

    loss: SequenceLoss
    sites: dict[int, Site]
    texts: Mapping[str, Batches]
    file: Path | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    known: dict[str, list[float]] = field(default_factory=dict)
    passes: int = 0  # measurements that were not known before
    saved_at: float = field(default_factory=time.monotonic)

    def __call__(self, text: str, heads: Iterable[Place]) -> tuple[float, ...]:
        """Return the loss of every sequence of a text without these heads, in nats per token."""
        out = sorted(set(heads))
        key = f"{text} {' '.join(f'{block}.{head}' for block, head in out)}".strip()

        def measure() -> list[float]:
            self.passes += 1
            with without_heads(self.loss.loaded.model, self.sites, out):
                return list(sequence_losses(self.loss, self.texts[text]))

        return tuple(self.remembered(key, measure))

    def remembered(self, key: str, measure: Callable[[], list[float]]) -> list[float]:
        """Return the numbers of this key, measured only if they are not known."""
        if key not in self.known:
            self.known[key] = measure()
            if time.monotonic() - self.saved_at > SAVED_EVERY:
                self.save()
        return self.known[key]

    def mean(self, text: str, heads: Iterable[Place]) -> float:
        each = self(text, heads)
        return sum(each) / len(each)

    def change(self, text: str, heads: Iterable[Place], since: Iterable[Place] = ()) -> Interval:
        """Return how much the loss rises from the model without `since` to the model without `heads`.

        Differences are paired by sequence, and the interval is over documents.
        """
        batches = self.texts[text]
        numbers = sorted(number for batch in batches for number in batch.samples)
        documents = [batches.documents[number] for number in numbers] if batches.documents else ()
        return paired_interval(self(text, since), self(text, heads), documents)

    @uninterrupted()
    def save(self) -> None:
        if self.file is not None and self.known:
            finite = {key: each for key, each in self.known.items() if all(map(math.isfinite, each))}
            content = json.dumps({"plan": self.plan, "losses": finite}, allow_nan=False)
            write_atomically(self.file, content.encode(), make_folder=True)
        self.saved_at = time.monotonic()

    def restore(self) -> None:
        """Read the losses of an interrupted run of the same plan, if there is one."""
        if self.file is None or not self.file.exists():
            return
        try:
            kept = json.loads(self.file.read_text("utf-8"))
            plan, known = kept["plan"], {str(key): [float(x) for x in each] for key, each in kept["losses"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RefusalError(f"{self.file} cannot be read ({error!s:.99}): start again without resuming.") from error
        if plan != json.loads(json.dumps(self.plan)):
            raise RefusalError(
                f"{self.file} is of another run: start again without resuming, or choose another folder."
            )
        self.known.update(known)


@contextmanager
def losses_without_heads(
    loss: SequenceLoss,
    sites: dict[int, Site],
    texts: Mapping[str, Batches],
    folder: Path | None = None,
    resume: bool = False,
    plan: Mapping[str, Any] | None = None,
) -> Iterator[RemovalLosses]:
    """Yield the losses. With a folder, keep them in a file there if the work is stopped, and read it if `resume`."""
    fingerprints = {name: text.fingerprint() for name, text in texts.items()}
    losses = RemovalLosses(
        loss, sites, texts, None if folder is None else folder / FILE, {**(plan or {}), "texts": fingerprints}
    )
    if resume:
        losses.restore()
    elif losses.file is not None:
        losses.file.unlink(missing_ok=True)
    try:
        yield losses
    except BaseException:
        losses.save()
        raise
