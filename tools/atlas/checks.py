"""Checks that a checkpoint is pretrained and loaded right. Each returns figures and whether they pass.

    next_token      loss of the next token, against the entropy of single tokens in the same text (unigram)
    masked_token    loss of masked tokens, against the same
    transcript      share of words of a recording that are heard right
    photographs     how often the nearest other crop is of the same photograph
    translation     loss of the true translation, against that of another sentence's
    titles          loss of a text given itself, against given another text
    tasks.py holds those of sentences and classifiers.

Losses are in nats a token. A model with random weights has a loss near the logarithm of its vocabulary, above unigram.
"""

from __future__ import annotations

import gzip
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


def texts(name: str) -> list[str]:
    """Return the lines of a corpus that hold something."""
    place = corpora.file(name)
    opened = gzip.open(place, "rt", encoding="utf-8") if place.suffix == ".gz" else place.open(encoding="utf-8")
    with opened as lines:
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("=")]


def _rows(checkpoint: Checkpoint, words: Any, ends: bool = False) -> tuple[list[Tensor], float]:
    """Return the first tokens of 16 sequences, and the entropy of tokens over many sequences."""
    found = texts(checkpoint.corpus)
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
    """Pass if the nearest other crop is of the same photograph for 15 of 16 crops, and more often than untrained."""
    import copy

    untrained = copy.deepcopy(model)
    torch.manual_seed(0)
    for parameter in untrained.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    pixels = corpora.photographs(checkpoint.family)
    gap, right = _crops(model, pixels)
    other_gap, other = _crops(untrained, pixels)
    passes = right >= 15 and gap > 2 * other_gap
    return {
        **{"nearest_right": right, "crops": 16, "cosine_gap": round(gap, 3)},
        **{"untrained_right": other, "untrained_gap": round(other_gap, 3), "passes": passes},
    }


def _crops(model: Any, pixels: Tensor) -> tuple[float, int]:
    with torch.inference_mode():
        out = model(pixel_values=pixels)
    features = out.image_embeds if "image_embeds" in out else out.last_hidden_state[:, 0]
    features = torch.nn.functional.normalize(features, dim=-1)
    cosine = features @ features.T
    same = torch.arange(16)[:, None] // 4 == torch.arange(16) // 4
    apart = ~torch.eye(16, dtype=torch.bool)
    gap = float(cosine[same & apart].mean() - cosine[~same].mean())
    return gap, int((cosine.masked_fill(~apart, -2).argmax(1) // 4 == torch.arange(16) // 4).sum())


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
    lines = [line for line in texts("english") if len(line) > 200][:24]
    return _own_and_other(model, words, [line[:300] for line in lines], [" ".join(line.split()[:8]) for line in lines])


def _own_and_other(model: Any, words: Any, given: list[str], wanted: list[str]) -> Figures:
    own, other = [], []
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
