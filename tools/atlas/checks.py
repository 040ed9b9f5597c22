"""Checks that a checkpoint is pretrained and loaded right. Each returns figures and whether they pass.

    next_token      loss of the next token, against the entropy of single tokens in the same text (unigram)
    masked_token    loss of masked tokens, against the same
    transcript      share of words of a recording that are heard right
    photographs     how many pictures find their own mirrored grey view
    translation     loss of the true translation, against that of another sentence's
    titles          loss of a text given itself, against given another text
    tasks.py holds those of sentences and classifiers.

Losses are in nats a token. A model with random weights has a loss near the logarithm of its vocabulary, above unigram.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.atlas import corpora
from tools.atlas.entry import Checkpoint

WINDOWS, LENGTH = 16, 64
Figures = dict[str, Any]


def next_token(checkpoint: Checkpoint, model: Any, words: Any, folder: Path) -> Figures:
    """Pass if the loss is below 0.8 of unigram entropy."""
    rows, entropy = _rows(checkpoint, words)
    losses = []
    with torch.inference_mode():
        for row in rows:
            scores = model(input_ids=row[None]).logits[0, :-1].float()
            losses.append(torch.nn.functional.cross_entropy(scores, row[1:]))
    return _against_unigram(float(torch.stack(losses).mean()), entropy)


def masked_token(checkpoint: Checkpoint, model: Any, words: Any, folder: Path) -> Figures:
    """Mask every seventh token in turn; pass if the loss is below 0.8 of unigram entropy."""
    rows, entropy = _rows(checkpoint, words, ends=True)
    losses = []
    with torch.inference_mode():
        for row in rows:
            hidden = torch.arange(3, len(row) - 1, 7)
            given = row.clone()
            given[hidden] = words.mask_token_id
            scores = model(input_ids=given[None]).logits[0, hidden].float()
            losses.append(torch.nn.functional.cross_entropy(scores, row[hidden]))
    return _against_unigram(float(torch.stack(losses).mean()), entropy)


def _against_unigram(loss: float, entropy: float) -> Figures:
    return {"loss": round(loss, 3), "unigram": round(entropy, 3), "passes": loss < 0.8 * entropy}


def _rows(checkpoint: Checkpoint, words: Any, ends: bool = False) -> tuple[list[Tensor], float]:
    """Return the first tokens of 16 sequences, and the entropy of tokens over many sequences."""
    found = corpora.texts(checkpoint.corpus)
    if (
        checkpoint.domain == "text" and sorted(map(len, found))[len(found) // 2] < 2 * LENGTH
    ):  # short lines of running text are joined
        found = [" ".join(found[at : at + 4]) for at in range(0, len(found) - 3, 4)]
    encoded = [words(line)["input_ids"] for line in found[:400]]
    counts = torch.bincount(torch.tensor([token for row in encoded for token in row]))
    shares = counts[counts > 0] / counts.sum()
    long = sorted(encoded, key=len, reverse=True) if max(map(len, encoded)) < LENGTH else encoded
    rows = [torch.tensor(row[:LENGTH]) for row in long if len(row) >= min(LENGTH, len(long[0]), 40)][:WINDOWS]
    return rows, float(-(shares * shares.log()).sum())


_SAID = {
    "jfk": "and so my fellow americans ask not what your country can do for you ask what you can do for your country",
    "beckett": "ever tried ever failed no matter try again fail again fail better",
}


def transcript(checkpoint: Checkpoint, model: Any, words: Any, folder: Path) -> Figures:
    """Pass if four of five words are heard in their order."""
    import difflib
    import re

    right = total = 0
    for name, sound in corpora.recordings().items():
        _, tokens = corpora.heard(model, checkpoint.family, sound)
        got = re.findall(r"[a-z]+", words.decode(tokens[0], skip_special_tokens=True).lower())
        said = _SAID[name].split()
        right += sum(block.size for block in difflib.SequenceMatcher(None, said, got).get_matching_blocks())
        total += len(said)
    return {"words_right": right, "words": total, "passes": right >= 0.8 * total}


def photographs(checkpoint: Checkpoint, model: Any, words: Any, folder: Path) -> Figures:
    """Pass if most pictures find their own other view, and far fewer do with shuffled weights."""
    one, other = corpora.views(checkpoint.family)
    right, control = (_own_view(candidate, one, other) for candidate in (model, shuffled(model)))
    passes = right >= 0.7 * len(one) and control <= 0.4 * len(one)
    return {"right": right, "of": len(one), "shuffled_right": control, "passes": passes}


def shuffled(model: Any) -> Any:
    """Return a copy whose matrices hold their own entries in another order."""
    other = copy.deepcopy(model)
    torch.manual_seed(0)
    for parameter in other.parameters():
        if parameter.ndim > 1:
            flat = parameter.data.flatten()
            parameter.data = flat[torch.randperm(len(flat))].view_as(parameter)
    return other


def _own_view(model: Any, one: Tensor, other: Tensor) -> int:
    features = []
    with torch.inference_mode():
        for pixels in (one, other):
            out = model(pixel_values=pixels)
            found = out.image_embeds if "image_embeds" in out else out.last_hidden_state[:, 0]
            features.append(torch.nn.functional.normalize(found - found.mean(0), dim=-1))
    return int(((features[0] @ features[1].T).argmax(1) == torch.arange(len(one))).sum())


def translation(checkpoint: Checkpoint, model: Any, words: Any, folder: Path) -> Figures:
    """Pass if the true translation costs less than half of what the next message's translation costs."""
    pairs = corpora.catalogue()[:40]
    if checkpoint.check_settings["languages"] == "fr_en":
        pairs = [(french, english) for english, french in pairs]
    given = [one for one, _ in pairs]
    wanted = [other for _, other in pairs]
    return _own_and_other(model, words, given, wanted)


def titles(checkpoint: Checkpoint, model: Any, words: Any, folder: Path) -> Figures:
    """The model writes spans of what it reads: pass if a text's own first words cost less than half of another's."""
    lines = [line for line in corpora.texts("english") if len(line) > 200][:24]
    return _own_and_other(model, words, [line[:300] for line in lines], [" ".join(line.split()[:8]) for line in lines])


def _own_and_other(model: Any, words: Any, given: list[str], wanted: list[str]) -> Figures:
    own: list[float] = []
    other: list[float] = []
    with torch.inference_mode():
        for at, text in enumerate(given):
            inputs = words(text, return_tensors="pt")
            for losses, target in ((own, wanted[at]), (other, wanted[at - 1])):
                labels = words(text_target=target, return_tensors="pt")["input_ids"]
                losses.append(float(model(**inputs, labels=labels).loss))
    mean_own, mean_other = sum(own) / len(own), sum(other) / len(other)
    return {
        **{"loss": round(mean_own, 3), "loss_of_another": round(mean_other, 3), "pairs": len(own)},
        "passes": mean_own < 0.5 * mean_other,
    }
