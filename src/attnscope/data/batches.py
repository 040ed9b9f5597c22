"""From token sequences to batches that a model takes, and back to which sequence was which.

Sequences are sorted by length, so that a batch holds little padding, and those of full length never share a
batch with shorter ones: a batch without padding carries no attention mask, and the model keeps its fused
causal kernel. Every batch knows the numbers of its sequences, so no result depends on the order.

    prepared = batches(windows(read("corpus.txt"), tokenizer), batch_size=8)
    prepared = Batches.of([{"pixel_values": images}, {"pixel_values": more_images}])
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.windows import Beginning, Window, Windows

TOKENS = ("input_ids", "inputs_embeds", "vectors")  # inputs with a row for each token, numbers or vectors


@dataclass(frozen=True)
class Batch:
    """Keyword arguments for one forward pass, and the numbers of the sequences in it.

    `mask` is True where a position of the input is real and `decoder_mask` the same for a decoder's own
    input; None means that every position is. `tokens` counts the real ones (of images or sound: the
    samples).
    """

    inputs: dict[str, Tensor]
    mask: Bool[Tensor, "batch token"] | None
    samples: tuple[int, ...]
    tokens: int
    decoder_mask: Bool[Tensor, "batch decoder_token"] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Batch:
        """The same batch on a device, its real numbers in `dtype` if given. Masks stay where `inputs` are."""
        return replace(
            self,
            inputs={
                name: tensor.to(device, dtype if tensor.is_floating_point() else None)
                for name, tensor in self.inputs.items()
            },
            mask=None if self.mask is None else self.mask.to(device),
            decoder_mask=None if self.decoder_mask is None else self.decoder_mask.to(device),
        )

    @property
    def undivided(self) -> tuple[str, ...]:
        """Inputs with neither a row for each sequence nor a single one for all: patches of several images, say."""
        return tuple(name for name, tensor in self.inputs.items() if tensor.shape[0] not in (1, len(self)))

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches of the same sequences at the same padded length, for when memory runs out."""
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
        """The first `tokens` positions of a text batch; batches of anything else stay as they are."""
        if "input_ids" not in self.inputs:
            return self
        length = self.inputs["input_ids"].shape[1]
        written = self.inputs.get("decoder_input_ids", self.inputs["input_ids"]).shape[1]
        if max(length, written) <= tokens or self._bound_to_length(length):
            return self
        inputs = {
            name: tensor[:, :tokens]
            if tensor.shape[1:2] == (written if name.startswith("decoder_") else length,)
            else tensor
            for name, tensor in self.inputs.items()
        }
        mask = None if self.mask is None else self.mask[:, :tokens]
        decoder_mask = None if self.decoder_mask is None else self.decoder_mask[:, :tokens]
        count = len(self) * min(length, tokens) if mask is None else int(mask.sum())
        return Batch(inputs, mask, self.samples, count, decoder_mask)

    def _bound_to_length(self, length: int) -> bool:
        """Whether something beside the tokens hangs on how many there are: pictures have their places among them."""
        return any(
            tensor.shape[1:2] != (length,) and not name.startswith(("decoder", "labels"))
            for name, tensor in self.inputs.items()
        )

    def rows(self, places: Sequence[int]) -> Batch:
        """The sequences at these places of the batch, at the same padded length."""
        chosen = list(places)
        mask = None if self.mask is None else self.mask[chosen]
        decoder_mask = None if self.decoder_mask is None else self.decoder_mask[chosen]
        samples = tuple(self.samples[place] for place in chosen)
        tokens = self.tokens * len(samples) // len(self) if mask is None else int(mask.sum())
        inputs = {
            name: tensor[chosen] if tensor.shape[0] == len(self) else tensor  # [1, ...] serves every sequence
            for name, tensor in self.inputs.items()
        }
        return Batch(inputs, mask, samples, tokens, decoder_mask)


@dataclass(frozen=True)
class Batches:
    """All batches of a scan. Iterate over it as often as you like.

    `beginning` says whether sequences of text begin with BOS; `notes` what a reader must know of how they were made;
    `documents` which text each sequence was cut from, by its number, where they were cut from texts.
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
        """A hash of what the model is really fed: text, tokenizer, cutting and order together."""
        return _digest(batch.inputs for batch in self.batches)

    @classmethod
    def of(cls, ready: Iterable[Mapping[str, Tensor]], name: str = "batches given in Python") -> Batches:
        """Batches made elsewhere: each a mapping of forward's arguments to tensors, sequences first."""
        made: list[Batch] = []
        counted = 0
        for number, inputs in enumerate(ready):
            batch = _ready_batch(number, inputs, counted)
            counted += len(batch)
            made.append(batch)
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

    `pad` is the tokenizer's padding token (0 where it has none: the mask hides it). With `decoder_start`
    the model is an encoder-decoder, whose decoder reads the target of each sequence (or the sequence again, where there
    is none), shifted right behind that token.
    `accepts` names the arguments of the model's forward; token types are handed over only where it takes
    them.
    """
    if batch_size < 1:
        raise RefusalError(f"A batch of {batch_size} sequences is empty: pass `batch_size=1` or more.")
    written = sequences.targets or tuple(window.ids for window in sequences.sequences)
    shifted = None if decoder_start is None else [(decoder_start, *ids[:-1]) for ids in written]
    made = [
        _batch(
            group,
            [sequences.sequences[i] for i in group],
            pad or 0,
            None if shifted is None else [shifted[i] for i in group],
            accepts,
        )
        for group in _groups(
            [len(window.ids) for window in sequences.sequences],
            batch_size,
            padding=accepts is None or bool({"attention_mask", "kwargs"} & accepts),
        )
    ]
    cut_from = () if sequences.targets is not None else tuple(window.document for window in sequences.sequences)
    return Batches(sequences.name, sequences.sha256, tuple(made), documents=cut_from)


def _groups(lengths: Sequence[int], batch_size: int, padding: bool) -> Iterator[list[int]]:
    """Longest first: if memory runs out, it does so at once and not after an hour.

    A model that takes no mask cannot be told of `padding`, so its batches hold sequences of one length.
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
    mask, decoder_mask = _mask(inputs, "attention_mask"), _mask(inputs, "decoder_attention_mask")
    if mask is not None and not bool(mask.any(dim=1).all()):
        raise RefusalError(f"Batch {number} has a sequence without a single real token: leave it out.")
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
            digest.update(_bytes(inputs[key]))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
