"""Summarise the batches between two looks: repeated sequences, first tokens, and where labels stand.

Every training forward adds a few numbers for each sequence, on the device of the batch, so nothing waits for an
accelerator between looks. `summary` reads them at a look. Two sequences are taken for equal if the 64-bit hashes of
their tokens are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

RECENT = 8  # forwards among which a repeated sequence is searched
MOST = 4096  # forwards between two looks that are kept
_FACTOR = 6364136223846793005  # of Knuth's linear congruential generator: odd, so that no token is lost modulo 2^64


class BatchCapture:
    """Filled by `add` at every training forward, read and emptied by `summary` at every look."""

    def __init__(self) -> None:
        self._batches: deque[dict[str, Tensor]] = deque(maxlen=MOST)
        self._recent: deque[frozenset[int]] = deque(maxlen=RECENT)
        self._usual: int | None = None  # the first token of most sequences at the first look
        self._powers = torch.ones(0, dtype=torch.int64)

    @torch.no_grad()
    def add(self, inputs: Mapping[str, Any], labels: Mapping[str, Any]) -> None:
        ids = inputs.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
            return
        ids = ids.detach().long()
        kept = {"hash": ((ids + 1) * self._multipliers(ids)).sum(dim=1), "first": _first_tokens(ids, inputs)}
        table = labels.get("labels", inputs.get("labels"))
        if isinstance(table, Tensor) and table.shape == ids.shape and not table.is_floating_point():
            kept["labels"] = _places(ids, table.detach())
        self._batches.append(kept)

    def _multipliers(self, ids: Tensor) -> Tensor:
        """Return odd numbers that differ for every position; products and sums wrap around at 2^64."""
        if len(self._powers) < ids.shape[1]:
            powers, factor = [], 1
            for _ in range(ids.shape[1]):
                factor = factor * _FACTOR % 2**64
                powers.append(factor - 2**64 if factor >= 2**63 else factor)
            self._powers = torch.tensor(powers, dtype=torch.int64)
        self._powers = self._powers.to(ids.device)
        return self._powers[: ids.shape[1]]

    def summary(self) -> dict[str, float]:
        """Return the fields of `TrainingState` that are known, for the forwards since the last summary."""
        batches, self._batches = list(self._batches), deque(maxlen=MOST)
        if not batches:
            return {}
        firsts = [token for batch in batches for token in batch["first"].tolist()]
        if self._usual is None:
            self._usual = Counter(firsts).most_common(1)[0][0]
        found = {
            "repeated": self._repeated([batch["hash"].tolist() for batch in batches]),
            "usual_first_token": firsts.count(self._usual) / len(firsts),
        }
        counted = [batch["labels"] for batch in batches if "labels" in batch]
        if counted:
            *equal, known = torch.stack(counted).sum(dim=0).tolist()
            if known:
                names = ("labels_before", "labels_same", "labels_after")
                found |= {name: count / known for name, count in zip(names, equal, strict=True)}
        return found

    def _repeated(self, batches: list[list[int]]) -> float:
        again = total = 0
        for hashes in batches:
            earlier = frozenset().union(*self._recent)
            again += sum(one in earlier for one in hashes)
            total += len(hashes)
            self._recent.append(frozenset(hashes))
        return again / total


def _first_tokens(ids: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Return the first token of every sequence that is not padding."""
    mask = inputs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return ids[:, 0]
    return ids.gather(1, (mask != 0).int().argmax(dim=1, keepdim=True))[:, 0]


def _places(ids: Tensor, labels: Tensor) -> Tensor:
    """Return how many labels equal the token before, at and after their place, and how many were compared.

    The first and the last place have no neighbour on one side and are left out.
    """
    inner = labels[:, 1:-1]
    known = inner >= 0
    neighbours = (ids[:, :-2], ids[:, 1:-1], ids[:, 2:])
    return torch.stack([*(((inner == own) & known).sum() for own in neighbours), known.sum()])
