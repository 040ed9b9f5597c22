"""Train real models on books under a watch, and switch a fault on in the middle: the runs of `bench.watch_faults`.

    microformer    a GPT-2 of 8 blocks (published weights, of microbes); reads words after 250 steps of adaptation
    rxnfp          a BERT of 12 blocks (published weights, of chemical reactions); fills in letters, likewise
    scratch        a GPT-2 of 6 blocks, 128 wide, from random weights; reads letters

All read three novels by Austen. A run of a model and a seed trains some steps without a fault; runs with a fault and
controls continue from there. Learning rates fall along a cosine. Every run is a run folder, with the loss of each step
beside it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tools.fetch_models import path as weights

EVERY = 4  # steps between looks
AFTER = 72  # steps of a continued run
NOVELS = ("austen-emma.txt", "austen-sense.txt", "austen-persuasion.txt")


@dataclass(frozen=True)
class Subject:
    """A model and how it is trained. `before` steps precede the fault; `first` begins every sequence."""

    name: str
    words: bool
    rows: int
    tokens: int
    rate: float
    before: int
    first: int
    offset: int  # the token of the most frequent word or letter
    vocabulary: int
    mask: int | None = None  # the token that replaces tokens to be filled in

    @property
    def causal(self) -> bool:
        return self.mask is None


SUBJECTS = {
    "microformer": Subject("microformer", True, 4, 24, 3e-4, 96, 2, 4, 9669),
    "rxnfp": Subject("rxnfp", False, 4, 32, 3e-4, 96, 12, 15, 591, mask=14),
    "scratch": Subject("scratch", False, 8, 32, 1e-3, 160, 0, 1, 128),
}


@cache
def book(name: str) -> str:
    return (weights("gutenberg") / name).read_text("latin-1").lower()


@cache
def tokens_of(subject: Subject, names: tuple[str, ...]) -> Tensor:
    """Return books as token numbers; the most frequent words or letters of the novels come first."""

    def parts(name: str) -> list[str]:
        return re.findall(r"[a-z]+|[^\sa-z]", book(name)) if subject.words else list(re.sub(r"\s+", " ", book(name)))

    counts = Counter(part for name in NOVELS for part in parts(name))
    most = subject.vocabulary - subject.offset - 1
    rank = {part: subject.offset + n for n, (part, _) in enumerate(counts.most_common(most))}
    rare = subject.vocabulary - 1
    return torch.tensor([rank.get(part, rare) for name in names for part in parts(name)])


def batch_of(subject: Subject, seed: int, names: tuple[str, ...] = NOVELS) -> dict[str, Tensor]:
    """Return a batch of random windows; each begins with the subject's first token."""
    draw = torch.Generator().manual_seed(seed)
    data = tokens_of(subject, names)
    starts = torch.randint(0, len(data) - subject.tokens, (subject.rows,), generator=draw)
    ids = data[starts[:, None] + torch.arange(subject.tokens)]
    ids[:, 0] = subject.first
    if subject.mask is None:
        return {"input_ids": ids, "labels": ids.clone()}
    hidden = torch.rand(ids.shape, generator=draw) < 0.3
    hidden[:, 0] = False
    labels = ids.masked_fill(~hidden, -100)
    shown = hidden & (torch.rand(ids.shape, generator=draw) < 0.9)
    return {"input_ids": ids.masked_fill(shown, subject.mask), "labels": labels}


def new_model(subject: Subject, seed: int) -> nn.Module:
    from transformers import BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    if subject.name == "scratch":
        sizes = {"n_embd": 128, "n_layer": 6, "n_head": 4, "n_positions": 64, "vocab_size": subject.vocabulary}
        return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).train()
    kind = GPT2LMHeadModel if subject.causal else BertForMaskedLM
    return kind.from_pretrained(weights(subject.name)).train()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return list(model.transformer.h if hasattr(model, "transformer") else model.bert.encoder.layer)


def rate_at(subject: Subject, step: int) -> float:
    """Return a cosine from the full rate to 0.3 of it, after ten steps of warm-up."""
    share = min(1.0, step / (subject.before + AFTER))
    return subject.rate * min(1.0, (step + 1) / 10) * (0.65 + 0.35 * math.cos(math.pi * share))


class Training:
    """A model in training. A fault changes its methods' results from the step `since` on."""

    def __init__(self, subject: Subject, seed: int, model: nn.Module) -> None:
        self.subject, self.seed, self.model = subject, seed, model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=subject.rate, weight_decay=0.01)
        self.block = 2 + seed  # where faults of one block are planted
        self.names: tuple[str, ...] = NOVELS
        self.rate: Callable[[int], float] = lambda step: rate_at(subject, step)
        self.change_batch: Callable[[dict[str, Tensor], int], dict[str, Tensor]] = lambda batch, _: batch
        self.change_gradients: Callable[[], None] = lambda: None
        self.change_weights: Callable[[], None] = lambda: None

    def step(self, number: int, order: int, watch: Any) -> float:
        """Run one step; `number` counts from 0 and `order` seeds the data."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        batch = batch_of(self.subject, 1_000_003 * (self.seed + 17 * order) + number, self.names)
        loss = self.model(**self.change_batch(batch, number)).loss
        loss.backward()
        self.change_gradients()
        self.optimizer.step()
        self.change_weights()
        if watch is not None:
            watch.step(loss=loss)
        self.optimizer.zero_grad()
        return float(loss.detach())
