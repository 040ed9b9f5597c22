"""Train real models on books under a watch, and switch a fault on in the middle: the runs of `bench.watch_faults`.

    microformer    a GPT-2 of 8 blocks (published weights, of microbes); reads words after 250 steps of adaptation
    rxnfp          a BERT of 12 blocks (published weights, of chemical reactions); fills in letters, likewise
    scratch        a GPT-2 of 6 blocks, 128 wide, from random weights; reads letters

All read three novels by Austen. A run of a model and a seed trains some steps without a fault; runs with a fault and
controls continue from there. Learning rates fall along a cosine. Every run is a run folder, with the loss of each step
beside it.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import attnscope
from attnscope.commands.watch.alarm_judge import muted_log
from tools.fetch_models import path as weights

EVERY = 4  # steps between looks
AFTER = 72  # steps of a continued run
ADAPTING = 250
NOVELS = ("austen-emma.txt", "austen-sense.txt", "austen-persuasion.txt")
OTHER_BOOK = "bible-kjv.txt"


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


# Faults. Each takes a training and the step from which it acts, and changes the training.


def mask_lost(training: Training, step: int) -> None:
    for block in blocks_of(training.model):
        block.attn.is_causal = False


def mask_lost_in_one_block(training: Training, step: int) -> None:
    blocks_of(training.model)[training.block].attn.is_causal = False


def _times(factor: float) -> Callable[[Training, int], None]:
    def change(training: Training, step: int) -> None:
        before = training.rate
        training.rate = lambda number: factor * before(number)

    return change


def block_frozen(training: Training, step: int) -> None:
    blocks_of(training.model)[training.block].requires_grad_(False)


def one_batch_repeated(training: Training, step: int) -> None:
    kept = batch_of(training.subject, 1_000_003 * training.seed + step)
    training.change_batch = lambda batch, number: kept


def first_token_dropped(training: Training, step: int) -> None:
    """Sequences begin in the middle of the text."""

    def change(batch: dict[str, Tensor], number: int) -> dict[str, Tensor]:
        other = batch_of(training.subject, 7 + number)["input_ids"][:, 5]
        ids, labels = batch["input_ids"].clone(), batch["labels"].clone()
        ids[:, 0] = other
        if training.subject.causal:
            labels[:, 0] = other
        return {"input_ids": ids, "labels": labels}

    training.change_batch = change


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


def rounded_to_bfloat16(training: Training, step: int) -> None:
    @torch.no_grad()
    def change() -> None:
        for p in _matrices(training.model):
            p.copy_(p.bfloat16().float())

    training.change_weights = change


def rounded_to_8_bits(training: Training, step: int) -> None:
    @torch.no_grad()
    def change() -> None:
        for p in _matrices(training.model):
            grid = p.abs().max() / 127
            p.copy_((p / grid).round() * grid)

    training.change_weights = change


def norms_decayed(training: Training, step: int) -> None:
    gains = [
        p
        for block in blocks_of(training.model)
        for name, p in block.named_parameters()
        if p.ndim == 1 and name.endswith("weight")
    ]

    @torch.no_grad()
    def change() -> None:
        for gain in gains:
            gain.mul_(0.98)

    training.change_weights = change


def gradient_zeroed(training: Training, step: int) -> None:
    own = list(blocks_of(training.model)[training.block].parameters())

    def change() -> None:
        for p in own:
            if p.grad is not None:
                p.grad.zero_()

    training.change_gradients = change


def nan_batch(training: Training, step: int) -> None:
    """One batch in which no label counts: the mean over no labels is NaN."""

    def change(batch: dict[str, Tensor], number: int) -> dict[str, Tensor]:
        return {**batch, "labels": torch.full_like(batch["labels"], -100)} if number == step else batch

    training.change_batch = change


def optimizer_state_lost(training: Training, step: int) -> None:
    training.optimizer.state.clear()


def labels_shifted(training: Training, step: int) -> None:
    training.change_batch = lambda batch, _: {**batch, "labels": batch["labels"].roll(-1, dims=1)}


# Controls: nothing, or a change that harms nothing.


def other_order(training: Training, step: int) -> None:
    """Only the order of the data differs."""


def warm_restart(training: Training, step: int) -> None:
    training.rate = lambda number: rate_at(training.subject, 10 + number - step)


def other_book(training: Training, step: int) -> None:
    training.names = (OTHER_BOOK,)


FAULTS: dict[str, Callable[[Training, int], None]] = {
    "mask lost": mask_lost,
    "mask lost in one block": mask_lost_in_one_block,
    "learning rate x 10": _times(10.0),
    "learning rate x 3": _times(3.0),
    "block frozen": block_frozen,
    "one batch repeated": one_batch_repeated,
    "first token dropped": first_token_dropped,
    "weights rounded to bfloat16": rounded_to_bfloat16,
    "weights rounded to 8 bits": rounded_to_8_bits,
    "norms decayed": norms_decayed,
    "gradient of a block zeroed": gradient_zeroed,
    "batch without labels (NaN)": nan_batch,
    "optimiser state lost": optimizer_state_lost,
    "labels shifted": labels_shifted,
}
PLACED = ("mask lost", "mask lost in one block", "block frozen", "gradient of a block zeroed")
CAUSAL_ONLY = ("mask lost", "mask lost in one block")
CONTROLS: dict[str, Callable[[Training, int], None]] = {
    **{f"other order {n}": other_order for n in range(8)},
    **{f"warm restart {n}": warm_restart for n in range(1, 4)},
    **{f"other book {n}": other_book for n in range(1, 4)},
}


def switched_on(subject: Subject, seed: int) -> int:
    """Return the number of the first step with the fault. It differs so that looks follow at different distances."""
    return subject.before + 5 + seed


def runs_of(subject: Subject, seed: int, folder: Path) -> Iterator[str]:
    """Train all runs of a subject and a seed that are not in the folder yet; yield the name of each."""
    own = folder / subject.name / str(seed)
    names = [n for n in (*FAULTS, *CONTROLS) if subject.causal or n not in CAUSAL_ONLY]
    missing = [n for n in names if not (own / n / "losses.json").exists()]
    if not missing:
        return
    training = Training(subject, seed, new_model(subject, seed))
    _adapt(training, folder)
    shutil.rmtree(own / "prefix", ignore_errors=True)
    torch.manual_seed(seed)
    with muted_log(), attnscope.watch(training.model, own / "prefix", every=EVERY) as watch:
        prefix = [training.step(number, 0, watch) for number in range(subject.before)]
    model, optimizer = copy.deepcopy(training.model), copy.deepcopy(training.optimizer.state_dict())
    for name in missing:
        _continue(Training(subject, seed, copy.deepcopy(model)), optimizer, name, own, prefix)
        yield f"{subject.name} {seed} {name}"


def _adapt(training: Training, folder: Path) -> None:
    """Train published weights on the new vocabulary once, and keep the result."""
    if training.subject.name == "scratch":
        return
    kept = folder / f"{training.subject.name}.pt"
    if not kept.exists():
        torch.manual_seed(0)
        first = Training(training.subject, 99, training.model)
        for number in range(ADAPTING):
            first.step(min(number, 40), number, None)
        torch.save(training.model.state_dict(), kept)
    training.model.load_state_dict(torch.load(kept, weights_only=True))


def _continue(training: Training, optimizer: dict[str, Any], name: str, own: Path, prefix: list[float]) -> None:
    subject, seed, run = training.subject, training.seed, own / name
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(own / "prefix", run)
    training.optimizer.load_state_dict(copy.deepcopy(optimizer))
    since = switched_on(subject, seed)
    order = int(name.rpartition(" ")[2]) if name in CONTROLS else 0
    torch.manual_seed(100 + seed)
    losses = list(prefix)
    with muted_log(), attnscope.watch(training.model, run, every=EVERY, resume_from=subject.before) as watch:
        for number in range(subject.before, subject.before + AFTER):
            if number == since:
                {**FAULTS, **CONTROLS}[name](training, number)
            losses.append(training.step(number, order, watch))
            if not math.isfinite(losses[-1]) and number > since + 8:
                break
    told = {"since": since + 1, "block": training.block, "losses": [x if math.isfinite(x) else None for x in losses]}
    (run / "losses.json").write_text(json.dumps(told))
