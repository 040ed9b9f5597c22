"""Tasks for small models. Data depend only on sizes and seed.

    sort           8 tokens of 10 symbols, with repeats; label i is the i-th smallest
    hull           10 points, uniform in a square and shifted together; is each one a corner of the convex hull?
    memorisation   sequences of tokens with a random bit each; evaluated on the training data
    copying        random tokens, and triggers after which an earlier token comes again
    composition    f_L(...f_1(q)), each function given as a table in the text (arXiv:2602.01763, 2412.02975)

The first three are those of arXiv:2103.03404 (section 4.2). Memorisation has no positions, so equal tokens of one
sequence share an answer: the best possible accuracy is below one, and is computed (`ceiling`).

Copying is the bigram-backcopy task of arXiv:2410.13835 with a flat bigram. A head that copies has something to say
after a trigger and nothing elsewhere, but softmax makes it attend to something: here attention sinks appear in the
smallest models. If earlier tokens predicted the next one, resting on the own token would do as little harm as resting
on the first.

The text of a composition has one token for each entry (l, a, f_l(a)), all of f_1 first, then the queries. A causal
model meets every table before the one whose answers say where to look in it, so it cannot look ahead. `vectors` gives
tokens as one-hot parts: the entry (fold and argument), and the content, which for a query is q.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.read import read

IGNORED = -100  # the label of padding, ignored by torch's cross entropy


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
        """The rows to evaluate: held-out rows, or all rows if there are none."""
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
        """The accuracy of the most frequent label at each place: the best without looking at the inputs.

        Sorted symbols are mostly small in front and large behind, so for sorting it is far above `majority`.
        """
        known = self.labels[self.test]
        right = [torch.bincount(some[some != IGNORED], minlength=self.classes).max() for some in known.T]
        return float(torch.stack(right).sum() / (known != IGNORED).sum())


def loss_on(task: Task, model: nn.Module, rng: torch.Generator, batch: int) -> Tensor:
    """Return the cross entropy of `batch` rows drawn from the training part."""
    rows = torch.randint(0, task.train, (batch,), generator=rng)
    return F.cross_entropy(model(**task.batch(rows)).flatten(0, 1), task.labels[rows].flatten(), ignore_index=IGNORED)


def hits(answer: Tensor, labels: Int[Tensor, "row token"]) -> tuple[int, int]:
    """Return how many tokens are predicted right, of how many."""
    known = labels != IGNORED
    return int(((answer.argmax(-1) == labels) & known).sum()), int(known.sum())


def sort_task(train: int, test: int, seed: int, *, tokens: int = 8, symbols: int = 10) -> Task:
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, symbols, (train + test, tokens), generator=rng)
    return Task("sort", {"input_ids": ids}, ids.sort(dim=1).values, train, symbols)


def hull_task(train: int, test: int, seed: int, *, points: int = 10) -> Task:
    """Draw points U[0, 10]^2 and a shift N(0, 3.3^2) for each set, then scale all to about one."""
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
    """Draw words as frequent as in language, the r-th as 1 / (r + 2.7) (Zipf-Mandelbrot), with a bit each.

    Sequences have half to full length, like sentences cut at `longest`.
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
    """Return the share of right tokens if equal tokens of a sequence give the answer of their majority."""
    right = 0
    for tokens, wanted, here in zip(ids, bits, real, strict=True):
        _, group = np.unique(tokens[here], return_inverse=True)
        ones = np.bincount(group, weights=wanted[here])
        right += int(np.maximum(ones, np.bincount(group) - ones).sum())
    return right / int(real.sum())


BOS = 0


@dataclass(frozen=True)
class CopyTask:
    """Symbols 1 to `triggers` are triggers; after one comes the token `back` places before it."""

    symbols: int = 32
    triggers: int = 4
    back: int = 1
    tokens: int = 64
    bos: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.triggers < self.symbols or not 0 < self.back < self.tokens:
            raise RefusalError("A copying task needs fewer triggers than symbols, and a place inside the text to copy.")


@dataclass(frozen=True)
class Text:
    """Rows of token ids; `floor` is the least possible loss in nats per token, or 0 if it is unknown."""

    ids: Int[Tensor, "row token"]
    vocabulary: int
    floor: float = 0.0


def copying(task: CopyTask, rows: int, seed: int) -> Text:
    """Draw rows. A trigger is never copied: it would start another copy, without end."""
    rng = torch.Generator().manual_seed(seed)
    shape = (rows, task.tokens + 1)  # as many predictions with BOS as without
    drawn = torch.randint(1, task.symbols + 1, shape, generator=rng)
    ids = torch.full(shape, BOS)
    surprise = torch.full(shape, math.log(task.symbols), dtype=torch.float64)
    first = int(task.bos)
    for place in range(first, ids.shape[1]):
        fresh = drawn[:, place]
        if place - 1 - task.back < first:
            ids[:, place] = fresh
            continue
        before, source = ids[:, place - 1], ids[:, place - 1 - task.back]
        copied = (before <= task.triggers) & (source > task.triggers)
        ids[:, place] = torch.where(copied, source, fresh)
        surprise[:, place].masked_fill_(copied, 0.0)
    return Text(ids, task.symbols + 1, float(surprise[:, 1:].mean()))


def characters(
    tokens: int, rows: int, seed: int, *, bos: bool = True, held_out: bool = False, half: int | None = None
) -> Text:
    """Draw windows of the embedded book, letter by letter; its last tenth is held out.

    `half` 0 or 1 takes only that half, so that a choice made on one half can be judged on the other.
    """
    book = "".join(read().documents)
    letters = {letter: place for place, letter in enumerate(sorted(set(book)), start=1)}
    stream = torch.tensor([letters[letter] for letter in book])
    cut = len(stream) * 9 // 10
    stream = stream[cut:] if held_out else stream[:cut]
    if half is not None:
        stream = stream[: len(stream) // 2] if half == 0 else stream[len(stream) // 2 :]
    length = tokens + 1 - bos
    starts = torch.randint(0, len(stream) - length, (rows,), generator=torch.Generator().manual_seed(seed))
    ids = stream[starts[:, None] + torch.arange(length)]
    return Text(torch.nn.functional.pad(ids, (1, 0), value=BOS) if bos else ids, len(letters) + 1)


@dataclass(frozen=True)
class ComposedText:
    """`tables` are f_l(a); `answers` are f_1(q), f_2(f_1(q)), ..."""

    tables: Int[Tensor, "row fold argument"]
    queries: Int[Tensor, "row query"]
    answers: Int[Tensor, "row query fold"]


@dataclass(frozen=True)
class Composition:
    """`folds` random functions of `arguments` symbols into the same symbols, asked `queries` times."""

    folds: int
    arguments: int
    queries: int = 1

    def __post_init__(self) -> None:
        if self.folds < 1 or self.arguments < 2 or self.queries < 1:
            raise RefusalError("Composition needs at least 1 function of 2 symbols and 1 query: give more.")

    @property
    def entries(self) -> int:
        return self.folds * self.arguments

    @property
    def tokens(self) -> int:
        return self.entries + self.queries

    @property
    def inputs(self) -> int:
        """The width of the vectors: entries (fold and argument) plus contents."""
        return self.entries + self.arguments

    def draw(self, rows: int, rng: torch.Generator) -> ComposedText:
        tables = torch.randint(self.arguments, (rows, self.folds, self.arguments), generator=rng)
        queries = torch.randint(self.arguments, (rows, self.queries), generator=rng)
        return ComposedText(tables, queries, composed(tables, queries))

    def vectors(self, text: ComposedText) -> Float[Tensor, "row token inputs"]:
        held = torch.cat([text.tables.flatten(1), text.queries], dim=1)
        entry = F.pad(torch.eye(self.entries), (0, 0, 0, self.queries))  # queries are not entries
        return torch.cat([entry.expand(len(held), -1, -1), F.one_hot(held, self.arguments).float()], dim=-1)


def composed(
    tables: Int[Tensor, "row fold argument"], queries: Int[Tensor, "row query"]
) -> Int[Tensor, "row query fold"]:
    """Return the answers after every function, by lookup."""
    current, answers = queries, []
    for table in tables.unbind(1):
        current = table.gather(1, current)
        answers.append(current)
    return torch.stack(answers, dim=-1)
