"""Choose the windows of a trial, and ask a model to predict their tokens.

A causal model predicts every next token. A masked model predicts every seventh token, which is replaced by its mask
token. Other models predict nothing, and have no loss.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.scan.survey.trial import Task
from attnscope.data.batches import Batch, Batches
from attnscope.hf.intercepting.owners import every_tensor
from attnscope.hf.loading.load import Loaded

WINDOWS, TOKENS = 32, 64  # most windows of a trial, and most tokens of each
WHOLE_TOKENS = 256  # most tokens of a window of a model without a causal mask
EVERY = 7  # one token in seven is masked, as in the training of masked models (15%)
NOTHING = -100  # the target of a token that is not predicted


def windows_of(prepared: Batches, most: int = WINDOWS, tokens: int = TOKENS) -> tuple[Batch, ...]:
    """Return the first tokens of sequences spread evenly over the corpus."""
    samples = sorted(sample for batch in prepared for sample in batch.samples)
    count = min(most, len(samples))
    chosen = {samples[place * len(samples) // count] for place in range(count)}
    found = []
    for batch in prepared:
        rows = [row for row, sample in enumerate(batch.samples) if sample in chosen]
        if rows:
            part = batch if len(rows) == len(batch) or batch.undivided else batch.rows(rows)
            found.append(part.shortened(tokens))
    return tuple(found)


def first_windows(batches: Sequence[Batch], most: int) -> tuple[Batch, ...]:
    """Return the first windows, at most `most` of them."""
    found: list[Batch] = []
    for batch in batches:
        room = most - sum(map(len, found))
        if room > 0:
            found.append(batch if len(batch) <= room or batch.undivided else batch.rows(range(room)))
    return tuple(found)


@dataclass(frozen=True)
class Question:
    """Arguments of a forward pass, and for every token the token to predict there, or `NOTHING`."""

    inputs: dict[str, Tensor]
    targets: Int[Tensor, "row token"]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple((self.targets != NOTHING).sum(1).tolist())


def ids_name(inputs: Mapping[str, Tensor]) -> str | None:
    """Return the name of the argument with token ids: the only tensor of whole numbers [row, token] besides masks."""
    if "decoder_input_ids" in inputs:
        return "decoder_input_ids"
    if "input_ids" in inputs:
        return "input_ids"
    whole = [name for name, t in inputs.items() if t.ndim == 2 and not t.is_floating_point() and t.dtype != torch.bool]
    return whole[0] if len(whole) == 1 and not whole[0].endswith("mask") else None


def questions(loaded: Loaded, batches: Sequence[Batch], causal: bool) -> tuple[Task | None, tuple[Question, ...]]:
    """Return what the model is asked to predict; no task if it cannot predict tokens."""
    mask_token = getattr(loaded.tokenizer, "mask_token_id", None)
    names = [ids_name(batch.inputs) for batch in batches]
    if not batches or None in names:
        return None, ()
    if causal:
        return "next token", tuple(_next(batch, str(name)) for batch, name in zip(batches, names, strict=True))
    if loaded.kind != "masked" or not isinstance(mask_token, int):
        return None, ()
    special = frozenset(getattr(loaded.tokenizer, "all_special_ids", ()))
    return "masked token", tuple(_masked(batch, mask_token, special) for batch in batches)


def _next(batch: Batch, name: str) -> Question:
    ids = batch.inputs[name].long()
    targets = torch.full_like(ids, NOTHING)
    targets[:, :-1] = ids[:, 1:]
    mask = batch.decoder_mask if name == "decoder_input_ids" else batch.mask
    if mask is not None:
        targets[:, :-1][~(mask[:, 1:] & mask[:, :-1])] = NOTHING
    return Question(batch.inputs, targets)


def _masked(batch: Batch, mask_token: int, special: frozenset[int]) -> Question:
    ids = batch.inputs["input_ids"]
    rows, tokens = ids.shape
    numbers = torch.arange(tokens)[None] + torch.arange(rows)[:, None]
    words = ~torch.isin(ids, torch.tensor(sorted(special), dtype=ids.dtype))
    if batch.mask is not None:
        words &= batch.mask
    hidden = words & (numbers % EVERY == EVERY // 2)
    # A row that is too short to have a seventh token hides its middle one: a row without a target has no loss.
    middle = words & (words.cumsum(1) == (words.sum(1, keepdim=True) + 1) // 2)
    hidden |= middle & ~hidden.any(1, keepdim=True)
    inputs = {**batch.inputs, "input_ids": ids.masked_fill(hidden, mask_token)}
    return Question(inputs, ids.long().masked_fill(~hidden, NOTHING))


def predicted(output: Any, targets: Int[Tensor, "row token"]) -> Float[Tensor, "row token vocabulary"] | None:
    """Return the logits over the vocabulary in an output, or None if it has none of the right shape.

    Outputs with named fields call them `logits`. Other models (nanoGPT) return them first.
    """
    logits = getattr(output, "logits", None)
    found = [] if isinstance(output, Mapping) else list(every_tensor(output))[:1]
    found = [logits] if isinstance(logits, Tensor) else found
    highest = int(targets.max())
    for tensor in found:
        if tensor.ndim == 3 and tensor.shape[:2] == targets.shape and tensor.shape[-1] > max(highest, 1):
            return tensor
    return None


def window_losses(
    logits: Float[Tensor, "row token vocabulary"], targets: Int[Tensor, "row token"]
) -> Float[Tensor, " row"]:
    """Return the mean loss of each row in nats; NaN for a row without a target."""
    each = F.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="none"
    ).view_as(targets)
    return each.sum(1) / (targets != NOTHING).sum(1)


def run_losses(model: nn.Module, asked: Sequence[Question], options: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the loss of each window, or None if the model gives no logits over its vocabulary."""
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    losses: list[float] = []
    for question in asked:
        inputs = {name: tensor.to(device) for name, tensor in question.inputs.items()}
        logits = predicted(model(**inputs, **options), question.targets)
        if logits is None:
            return None
        losses += window_losses(logits, question.targets.to(logits.device)).tolist()
    return tuple(losses)


def unigram_loss(asked: Sequence[Question], batches: Sequence[Batch], vocabulary: int) -> float:
    """Return the loss in nats of a unigram model that knows the tokens of all other windows; NaN for one window.

    Witten-Bell smoothing: among N known tokens of T kinds, a known token t has probability c_t / (N + T), and the
    vocabulary - T unknown ones share T / (N + T).
    """
    rows = list(_rows(batches))
    whole = Counter(token for row in rows for token in row)
    losses: list[float] = []
    for row, targets in zip(rows, (t for question in asked for t in question.targets.tolist()), strict=True):
        others = whole - Counter(row)
        known, kinds = others.total(), len(others)
        unknown = kinds / max(1, vocabulary - kinds)
        losses += [-math.log((others[t] or unknown) / (known + kinds)) for t in targets if t != NOTHING and known]
    return math.fsum(losses) / len(losses) if losses else math.nan


def _rows(batches: Sequence[Batch]) -> Iterator[list[int]]:
    for batch in batches:
        name = str(ids_name(batch.inputs))
        mask = batch.decoder_mask if name == "decoder_input_ids" else batch.mask
        for number, row in enumerate(batch.inputs[name]):
            yield (row if mask is None else row[mask[number]]).tolist()


def bytes_of(asked: Sequence[Question], tokenizer: Any) -> tuple[int, ...]:
    """Return the number of UTF-8 bytes of the predicted tokens of each window; empty without a tokenizer."""
    if tokenizer is None:
        return ()
    rows = ([t for t in row if t != NOTHING] for question in asked for row in question.targets.tolist())
    return tuple(len(tokenizer.decode(row, skip_special_tokens=True).encode()) for row in rows)


def fingerprint(batches: Sequence[Batch]) -> str:
    """Return a hash of the model's input on these windows."""
    digest = hashlib.sha256()
    for batch in batches:
        for name, tensor in sorted(batch.inputs.items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
