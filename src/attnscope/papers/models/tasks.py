"""Tasks for small models. The data depend only on the sizes and the seed.

    sort           8 tokens drawn from 10 symbols, with repeats; label i is the i-th smallest
    hull           10 points, uniform in a square and shifted together; is each one a corner of the convex hull?
    memorisation   sequences with a random bit for each token; evaluated on the training data
    copying        random tokens, and triggers after which an earlier token is repeated
    composition    f_L(...f_1(q)), each function given as a table in the text (arXiv:2602.01763, 2412.02975)

The first three are from arXiv:2103.03404 (section 4.2). Memorisation has no positions, so equal tokens in a sequence
get the same answer: the best possible accuracy is below one and is computed as `ceiling`.

Copying is the bigram-backcopy task of arXiv:2410.13835 with a flat bigram. A head that copies has
something to contribute after a trigger and nothing elsewhere, but softmax makes it attend somewhere, so attention sinks
appear even in the smallest models. (If each token predicted the next, attending to itself would do as little harm as
attending to the first token.)

The text of a composition has one token for each entry (l, a, f_l(a)), in the order of l, followed by the queries. In a
causal model an entry of f_l cannot see the tables of later functions, so it cannot look ahead. `vectors` codes a token
as two one-hot parts: the entry (the pair of fold l and argument a), which is zero for a query, and the content, which
is f_l(a), or q for a query.
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

IGNORED = -100  # label of padding, which torch's cross entropy ignores


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
        """The accuracy of always giving the most frequent label of each position: the best possible without the inputs.

        After sorting, small symbols come first and large ones last, so for that task it is far above `majority`.
        """
        known = self.labels[self.test]
        right = [torch.bincount(some[some != IGNORED], minlength=self.classes).max() for some in known.T]
        return float(torch.stack(right).sum() / (known != IGNORED).sum())


def loss_on(task: Task, model: nn.Module, rng: torch.Generator, batch: int) -> Tensor:
    """Return the cross entropy on `batch` rows drawn from the training data."""
    rows = torch.randint(0, task.train, (batch,), generator=rng)
    return F.cross_entropy(model(**task.batch(rows)).flatten(0, 1), task.labels[rows].flatten(), ignore_index=IGNORED)


def hits(answer: Tensor, labels: Int[Tensor, "row token"]) -> tuple[int, int]:
    """Return the number of correctly predicted tokens, and the number of tokens with a label."""
    known = labels != IGNORED
    return int(((answer.argmax(-1) == labels) & known).sum()), int(known.sum())


def sort_task(train: int, test: int, seed: int, *, tokens: int = 8, symbols: int = 10) -> Task:
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, symbols, (train + test, tokens), generator=rng)
    return Task("sort", {"input_ids": ids}, ids.sort(dim=1).values, train, symbols)


def hull_task(train: int, test: int, seed: int, *, points: int = 10) -> Task:
    """Draw points from U[0, 10]^2, shift each set by a draw from N(0, 3.3^2), then scale to a size of about one."""
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
    """Draw words with frequencies as in language, proportional to 1 / (rank + 2.7) (Zipf-Mandelbrot), and random bits.

    Lengths are uniform between half of `longest` and `longest`.
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
    """Return the best accuracy possible if equal tokens in a sequence must get the same answer."""
    right = 0
    for tokens, wanted, here in zip(ids, bits, real, strict=True):
        _, group = np.unique(tokens[here], return_inverse=True)
        ones = np.bincount(group, weights=wanted[here])
        right += int(np.maximum(ones, np.bincount(group) - ones).sum())
    return right / int(real.sum())


BOS = 0


@dataclass(frozen=True)
class CopyTask:
    """The copying task. Symbols 1 to `triggers` are triggers; each is followed by the token `back` places before it."""

    symbols: int = 32
    triggers: int = 4
    back: int = 1
    tokens: int = 64
    bos: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.triggers < self.symbols or not 0 < self.back < self.tokens:
            raise RefusalError(
                "A copying task needs fewer triggers than symbols, and `back` within the text: give less."
            )


@dataclass(frozen=True)
class Text:
    """Rows of token ids; `floor` is the least possible loss in nats per token, or 0 if it is unknown."""

    ids: Int[Tensor, "row token"]
    vocabulary: int
    floor: float = 0.0


def copying(task: CopyTask, rows: int, seed: int) -> Text:
    """Draw rows. A trigger is never copied, because it would trigger copies without end."""
    rng = torch.Generator().manual_seed(seed)
    shape = (rows, task.tokens + 1)  # so that there are as many predictions with BOS as without
    drawn = torch.randint(1, task.symbols + 1, shape, generator=rng)
    ids = torch.full(shape, BOS)
    surprise = torch.full(shape, math.log(task.symbols), dtype=torch.float64)
    first = int(task.bos)
    for position in range(first, ids.shape[1]):
        fresh = drawn[:, position]
        if position - 1 - task.back < first:
            ids[:, position] = fresh
            continue
        before, source = ids[:, position - 1], ids[:, position - 1 - task.back]
        copied = (before <= task.triggers) & (source > task.triggers)
        ids[:, position] = torch.where(copied, source, fresh)
        surprise[:, position].masked_fill_(copied, 0.0)
    return Text(ids, task.symbols + 1, float(surprise[:, 1:].mean()))


def characters(
    tokens: int, rows: int, seed: int, *, bos: bool = True, held_out: bool = False, half: int | None = None
) -> Text:
    """Draw windows of the embedded book, with letters as tokens; the last tenth of the book is held out.

    `half` (0 or 1) restricts the draw to one half, so that a choice made on one half can be judged on the other.
    """
    book = "".join(read().documents)
    letters = {letter: token for token, letter in enumerate(sorted(set(book)), start=1)}
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
    """Texts of the composition task: `tables` holds f_l(a), `answers` holds f_1(q), f_2(f_1(q)), ..."""

    tables: Int[Tensor, "row fold argument"]
    queries: Int[Tensor, "row query"]
    answers: Int[Tensor, "row query fold"]


@dataclass(frozen=True)
class Composition:
    """A task of composing `folds` random functions on `arguments` symbols, with `queries` questions per sequence."""

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
        """Input width: one slot per (function, argument) plus one per symbol."""
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
    """Return the answers after each function, looked up in the tables."""
    current, answers = queries, []
    for table in tables.unbind(1):
        current = table.gather(1, current)
        answers.append(current)
    return torch.stack(answers, dim=-1)
