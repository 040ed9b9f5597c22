"""The three tasks on which arXiv:2103.03404 (section 4.2) asks what paths of each length can do.

    sort           8 tokens of 10 symbols, with repeats; label i is the i-th smallest
    hull           10 points, uniform in a square and shifted together; is each one a corner of the convex hull?
    memorisation   sequences of tokens, a random bit for each; evaluated on what it was trained on

Data depend on sizes and seed alone. Memorisation is done without positions, so equal tokens of one sequence cannot be
told apart and share an answer: the best possible accuracy is below one, and is computed (`ceiling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

IGNORED = -100  # the label of padding, which torch's cross entropy leaves out


@dataclass(frozen=True)
class Task:
    """Named inputs of a nano model and a label for every token; the first `train` rows are for training."""

    name: str
    inputs: Mapping[str, Tensor]
    labels: Int[Tensor, "row token"]
    train: int
    classes: int
    ceiling: float = 1.0

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def test(self) -> slice:
        """What is evaluated: rows that training does not see, or all of them where there are no others."""
        return slice(self.train, None) if self.train < self.rows else slice(0, None)

    def batch(self, rows: slice | Tensor) -> dict[str, Tensor]:
        return {name: values[rows] for name, values in self.inputs.items()}

    @property
    def majority(self) -> float:
        """The accuracy of always giving the most frequent label."""
        known = self.labels[self.test]
        counts = torch.bincount(known[known != IGNORED], minlength=self.classes)
        return float(counts.max() / counts.sum())

    @property
    def best_guess(self) -> float:
        """The accuracy of giving at each place the label that is most frequent there: the best without a look at the
        inputs. Sorted symbols are mostly small in front and large behind, so that there it is far above `majority`."""
        known = self.labels[self.test]
        right = [torch.bincount(some[some != IGNORED], minlength=self.classes).max() for some in known.T]
        return float(torch.stack(right).sum() / (known != IGNORED).sum())


def loss_on(task: Task, model: nn.Module, rng: torch.Generator, batch: int) -> Tensor:
    """Cross entropy of `batch` rows drawn from the training part."""
    rows = torch.randint(0, task.train, (batch,), generator=rng)
    return F.cross_entropy(model(**task.batch(rows)).flatten(0, 1), task.labels[rows].flatten(), ignore_index=IGNORED)


def hits(answer: Tensor, labels: Int[Tensor, "row token"]) -> tuple[int, int]:
    """How many tokens have the right class as their largest, of how many."""
    known = labels != IGNORED
    return int(((answer.argmax(-1) == labels) & known).sum()), int(known.sum())


def sort_task(train: int, test: int, seed: int, *, tokens: int = 8, symbols: int = 10) -> Task:
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, symbols, (train + test, tokens), generator=rng)
    return Task("sort", {"input_ids": ids}, ids.sort(dim=1).values, train, symbols)


def hull_task(train: int, test: int, seed: int, *, points: int = 10) -> Task:
    """Points U[0, 10]^2 and a shift N(0, 3.3^2) for each set; then all are scaled to about one."""
    rng = np.random.default_rng(seed)
    shape = (train + test, points, 2)
    places = rng.uniform(0, 10, shape) + rng.normal(0, 3.3, (train + test, 1, 2))
    labels = np.stack([on_hull(one) for one in places]).astype(np.int64)
    vectors = torch.from_numpy((places - 5) / 4).float()
    return Task("hull", {"vectors": vectors}, torch.from_numpy(labels), train, 2)


def on_hull(points: np.ndarray) -> Bool[np.ndarray, " point"]:
    from scipy.spatial import ConvexHull

    corner = np.zeros(len(points), dtype=bool)
    corner[ConvexHull(points).vertices] = True
    return corner


def memorisation_task(sequences: int, longest: int, seed: int, *, words: int = 4000) -> Task:
    """Words as frequent as in language, the r-th as 1 / (r + 2.7) (Zipf's law with Mandelbrot's shift); a bit for each.

    Half to full length, like sentences that were cut at `longest`.
    """
    rng = np.random.default_rng(seed)
    share = 1 / (np.arange(1, words + 1) + 2.7)
    lengths = rng.integers(max(2, longest // 2), longest, size=sequences, endpoint=True)
    ids = rng.choice(words, size=(sequences, longest), p=share / share.sum())
    real = np.arange(longest) < lengths[:, None]
    bits = rng.integers(0, 2, size=ids.shape)
    _, dense = np.unique(np.where(real, ids, 0), return_inverse=True)  # only words that occur need an embedding
    inputs = {
        "input_ids": torch.from_numpy(dense.reshape(ids.shape)),
        "attention_mask": torch.from_numpy(real.astype(np.int64)),
    }
    labels = torch.from_numpy(np.where(real, bits, IGNORED).astype(np.int64))
    return Task("memorisation", inputs, labels, sequences, 2, ceiling_of(ids, bits, real))


def ceiling_of(
    ids: Int[np.ndarray, "row token"], bits: Int[np.ndarray, "row token"], real: Bool[np.ndarray, "row token"]
) -> float:
    """Share of tokens that are right when equal tokens of a sequence all answer what most of them want."""
    right = 0
    for tokens, wanted, here in zip(ids, bits, real, strict=True):
        _, group = np.unique(tokens[here], return_inverse=True)
        ones = np.bincount(group, weights=wanted[here])
        right += int(np.maximum(ones, np.bincount(group) - ones).sum())
    return right / int(real.sum())
