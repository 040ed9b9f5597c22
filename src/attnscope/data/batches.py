"""Turn token sequences into batches for a model, and keep track of which sequence is which.

Sequences are sorted by length, so that a batch holds little padding. Sequences of full length never share a batch with
shorter ones: a batch without padding has no attention mask, and the model keeps its fused causal kernel. Every batch
stores the numbers of its sequences, so no result depends on the order.

    prepared = batches(windows(read("corpus.txt"), tokenizer), batch_size=8)
    prepared = Batches.of([{"pixel_values": images}, {"pixel_values": more_images}])
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.windows import Beginning, Window, Windows

TOKENS = ("input_ids", "inputs_embeds", "vectors")  # inputs with one row per token
MEDIA = {"pixel_values": "images", "input_features": "sounds", "input_values": "sounds"}  # counted by sample


@dataclass(frozen=True)
class Batch:
    """Keyword arguments for one forward pass, and the numbers of the sequences in it.

    `mask` is True where the input is not padding, `decoder_mask` where the decoder's own input is not; None means no
    padding. `tokens` counts the positions that are not padding. For images, sound, and tokens under a name that is not
    known it counts the samples (`counted_as` says which); `recounted` corrects the latter.
    """

    inputs: dict[str, Tensor]
    mask: Bool[Tensor, "batch token"] | None
    samples: tuple[int, ...]
    tokens: int
    decoder_mask: Bool[Tensor, "batch decoder_token"] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def named(self) -> bool:
        """Whether names of inputs say how many tokens there are."""
        return self.mask is not None or any(name in self.inputs for name in TOKENS)

    @property
    def counted_as(self) -> str:
        """Return what `tokens` counts: tokens, images, sounds, or samples of another kind."""
        if self.named:
            return "tokens"
        return next((kind for name, kind in MEDIA.items() if name in self.inputs), "samples")

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Batch:
        """Return the batch on a device, with floating-point tensors cast to `dtype` if given."""
        inputs = {name: t.to(device, dtype if t.is_floating_point() else None) for name, t in self.inputs.items()}
        mask, decoder_mask = self._masks(lambda mask: mask.to(device))
        return replace(self, inputs=inputs, mask=mask, decoder_mask=decoder_mask)

    def _masks(self, change: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, Tensor | None]:
        mask, decoder_mask = (None if one is None else change(one) for one in (self.mask, self.decoder_mask))
        return mask, decoder_mask

    @property
    def undivided(self) -> tuple[str, ...]:
        """Names of inputs that have neither one row per sequence nor a single shared row, such as patches of several
        images."""
        return tuple(name for name, tensor in self.inputs.items() if tensor.shape[0] not in (1, len(self)))

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches of the same sequences at the same padded length, for when memory runs out."""
        if len(self) < 2:
            raise RefusalError(
                f"A single sequence of {self.tokens} tokens does not fit into memory: pass a smaller "
                "`max_tokens=`, or `dtype='bfloat16'`."
            )
        if self.undivided:
            raise RefusalError(
                f"This batch does not fit into memory and cannot be halved, since {self.undivided[0]} does not have "
                "one row per sequence: give smaller batches."
            )
        middle = len(self) // 2
        return self.rows(range(middle)), self.rows(range(middle, len(self)))

    def shortened(self, tokens: int) -> Batch:
        """Return the first `tokens` positions of a text batch; return any other batch unchanged."""
        if "input_ids" not in self.inputs:
            return self
        length = self.inputs["input_ids"].shape[1]
        written = self.inputs.get("decoder_input_ids", self.inputs["input_ids"]).shape[1]
        lengths = {name: written if name.startswith("decoder_") else length for name in self.inputs}
        # Some inputs depend on the number of tokens without having one row per token, such as pictures among the words.
        bound = any(
            tensor.shape[1:2] != (length,) and not name.startswith(("decoder", "labels"))
            for name, tensor in self.inputs.items()
        )
        if max(length, written) <= tokens or bound:
            return self
        inputs = {name: t[:, :tokens] if t.shape[1:2] == (lengths[name],) else t for name, t in self.inputs.items()}
        mask, decoder_mask = self._masks(lambda mask: mask[:, :tokens])
        count = len(self) * min(length, tokens) if mask is None else int(mask.sum())
        return Batch(inputs, mask, self.samples, count, decoder_mask)

    def rows(self, places: Sequence[int]) -> Batch:
        """Return the sequences at these indices of the batch, at the same padded length."""
        chosen = list(places)
        mask, decoder_mask = self._masks(lambda mask: mask[chosen])
        samples = tuple(self.samples[place] for place in chosen)
        tokens = self.tokens * len(samples) // len(self) if mask is None else int(mask.sum())
        # An input of shape [1, ...] is shared by all sequences.
        inputs = {name: t[chosen] if t.shape[0] == len(self) else t for name, t in self.inputs.items()}
        return Batch(inputs, mask, samples, tokens, decoder_mask)


@dataclass(frozen=True)
class Batches:
    """All batches of a scan; can be iterated repeatedly.

    `beginning` says whether sequences of text begin with BOS; `notes` say how the sequences were made; `documents` are
    the numbers of the texts that the sequences were cut from, if known.
    """

    name: str
    sha256: str
    batches: tuple[Batch, ...]
    beginning: Beginning | None = None
    notes: tuple[str, ...] = ()
    documents: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def samples(self) -> int:
        return sum(len(batch) for batch in self.batches)

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)

    def fingerprint(self) -> str:
        """Return a hash of the model's input, which depends on text, tokenizer, cutting and order."""
        return _digest(batch.inputs for batch in self.batches)

    def recounted(self, count: Callable[[Batch], tuple[int, int] | None]) -> Batches:
        """Return the batches with the numbers of sequences and tokens that `count` finds; None keeps those of a batch.

        Sequences are numbered again, in the same order.
        """
        made: list[Batch] = []
        start = 0
        for batch in self.batches:
            rows, tokens = count(batch) or (len(batch), batch.tokens)
            made.append(replace(batch, samples=tuple(range(start, start + rows)), tokens=tokens))
            start += rows
        return replace(self, batches=tuple(made))

    @classmethod
    def of(cls, ready: Iterable[Mapping[str, Tensor]], name: str = "batches given in Python") -> Batches:
        """Return batches from mappings of forward's arguments to tensors, whose first dimension is the sequence."""
        made: list[Batch] = []
        for number, inputs in enumerate(ready):
            made.append(_ready_batch(number, inputs, sum(map(len, made))))
        if not made:
            raise RefusalError("There is no batch to scan: give at least one.")
        return cls(name, _digest(batch.inputs for batch in made), tuple(made))


def batches(
    sequences: Windows,
    *,
    batch_size: int = 8,
    pad: int | None = None,
    decoder_start: int | None = None,
    accepts: frozenset[str] | None = None,
) -> Batches:
    """Pad and group sequences.

    `pad` is the tokenizer's padding token (0 if it has none: the mask hides it). With `decoder_start` the model is an
    encoder-decoder, whose decoder reads the target of each sequence (or the sequence again, if there is none), shifted
    right by one, with that token in front. `accepts` names the arguments of the model's forward; token types are passed
    only if it takes them.
    """
    if batch_size < 1:
        raise RefusalError(f"`batch_size=` cannot be {batch_size}: pass 1 or more.")
    windows = sequences.sequences
    written = sequences.targets or tuple(window.ids for window in windows)
    shifted = None if decoder_start is None else [(decoder_start, *ids[:-1]) for ids in written]
    padding = accepts is None or bool({"attention_mask", "kwargs"} & accepts)
    made = []
    for group in _groups([len(window.ids) for window in windows], batch_size, padding):
        decoder_ids = None if shifted is None else [shifted[i] for i in group]
        made.append(_batch(group, [windows[i] for i in group], pad or 0, decoder_ids, accepts))
    cut_from = () if sequences.targets is not None else tuple(window.document for window in windows)
    return Batches(sequences.name, sequences.sha256, tuple(made), documents=cut_from)


def _groups(lengths: Sequence[int], batch_size: int, padding: bool) -> Iterator[list[int]]:
    """Yield the sequence numbers of each batch, longest sequences first: if memory runs out, it does so at once.

    `padding` is false for a model that takes no mask and so cannot ignore padding: each of its batches holds sequences
    of one length.
    """
    longest = max(lengths)
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    full = [i for i in order if lengths[i] == longest]
    rest = order[len(full) :]
    parts = (full, rest) if padding else [list(same) for _, same in groupby(order, key=lengths.__getitem__)]
    for part in parts:
        for start in range(0, len(part), batch_size):
            yield part[start : start + batch_size]


def _batch(
    numbers: Sequence[int],
    group: Sequence[Window],
    pad: int,
    shifted: Sequence[tuple[int, ...]] | None,
    accepts: frozenset[str] | None,
) -> Batch:
    length = max(len(window.ids) for window in group)
    ids = _padded([window.ids for window in group], length, pad)
    mask = _real([len(window.ids) for window in group])
    tokens = int(mask.sum())
    inputs: dict[str, Tensor] = {"input_ids": ids}
    if not bool(mask.all()):
        inputs["attention_mask"] = mask.long()
    types = [window.types for window in group if window.types is not None]
    if len(types) == len(group) and (accepts is None or "token_type_ids" in accepts):
        inputs["token_type_ids"] = _padded(types, length, 0)
    decoder_mask = None
    if shifted is not None:
        decoder_mask = _real([len(ids) for ids in shifted])
        inputs["decoder_input_ids"] = _padded(shifted, decoder_mask.shape[1], pad)
        if not bool(decoder_mask.all()):
            inputs["decoder_attention_mask"] = decoder_mask.long()
    return Batch(inputs, mask, tuple(numbers), tokens, decoder_mask)


def _real(lengths: Sequence[int]) -> Bool[Tensor, "batch token"]:
    return torch.tensor([[i < length for i in range(max(lengths))] for length in lengths])


def _padded(rows: Sequence[tuple[int, ...]], length: int, pad: int) -> Int[Tensor, "batch token"]:
    return torch.tensor([(*row, *(pad,) * (length - len(row))) for row in rows], dtype=torch.long)


def _ready_batch(number: int, inputs: Mapping[str, Tensor], counted: int) -> Batch:
    tensors = inputs.values() if isinstance(inputs, Mapping) else ()
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.ndim for tensor in tensors):
        raise RefusalError(
            f"Batch {number} must map the names of forward's arguments to tensors with the sequences in "
            "their first dimension."
        )
    rows = len(inputs["input_ids"]) if "input_ids" in inputs else max(len(tensor) for tensor in inputs.values())
    samples = tuple(range(counted, counted + rows))
    if not samples:
        raise RefusalError(f"Batch {number} holds no sequence: leave it out.")
    if any(name.endswith("input_ids") and not tensor.numel() for name, tensor in inputs.items()):
        raise RefusalError(f"Batch {number} holds sequences without tokens: leave it out.")
    mask, decoder_mask = _mask(inputs, "attention_mask"), _mask(inputs, "decoder_attention_mask")
    if mask is not None and not bool(mask.any(dim=1).all()):
        raise RefusalError(f"Batch {number} has a sequence that is only padding: leave it out.")
    tokens = next((inputs[name].shape[:2].numel() for name in TOKENS if name in inputs), len(samples))
    tokens = tokens if mask is None else int(mask.sum())
    return Batch(dict(inputs), mask, samples, tokens, decoder_mask)


def _mask(inputs: Mapping[str, Tensor], name: str) -> Bool[Tensor, "batch token"] | None:
    mask = inputs.get(name)
    return mask.bool() if mask is not None and mask.ndim == 2 else None


def _digest(batches: Iterable[Mapping[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for number, inputs in enumerate(batches):
        for key in sorted(inputs):
            digest.update(f"{number} {key} {tuple(inputs[key].shape)}".encode())
            digest.update(inputs[key].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
