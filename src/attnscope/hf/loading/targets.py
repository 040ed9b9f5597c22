"""What the decoder of an encoder-decoder reads: the target of a pair, what the model writes, or the source again.

In use a decoder reads what it has written so far. Shown the source (the other language, the text to be summed up) its
cross-attention and its streams are those of a state in which nobody runs it. So where only sources are given, the model
writes first, greedily and not long, and then reads that; where it cannot write, the source is read again, and this is
said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.intact import evaluating
from attnscope.trace.batches import batches
from attnscope.trace.windows import Windows

LONGEST = 64  # tokens that a model writes, at most: as many steps for every batch
_SHORTEST = 2
_OF_PAIRS = "The decoder read the targets of the pairs, one token behind."


def with_targets(loaded: Loaded, sequences: Windows, batch_size: int = 8, seed: int = 0) -> tuple[Windows, str]:
    """The sequences with what the decoder writes for each, and a sentence that says what that is."""
    if sequences.targets is not None:
        return sequences, _OF_PAIRS
    why = _why_not(loaded)
    if why is None:
        longest = min(LONGEST, sequences.max_tokens)
        try:
            written = _written(loaded, sequences, longest, batch_size, seed)
            said = (
                "The decoder read what the model itself writes for each text, one token behind: greedy, at most "
                f"{longest} tokens."
            )
            return replace(sequences, targets=written), said
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            why = f"{loaded.class_name} does not write for this text ({type(error).__name__})"
    return sequences, (
        f"The decoder read the source again, one token behind, since {why}: what it does with a target of its own may "
        "be something else. Give pairs of source and target for that."
    )


def _why_not(loaded: Loaded) -> str | None:
    """Why a model is not asked to write; None where it is."""
    can = getattr(loaded.model, "can_generate", None)
    if not callable(can) or not can():
        return f"{loaded.class_name} writes no text"
    if loaded.provenance.get("weights") == "random":
        return "random weights write nothing of meaning"
    if loaded.tokenizer is None:
        return "the source is random tokens"
    return None


def _written(
    loaded: Loaded, sequences: Windows, longest: int, batch_size: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Greedy, so that a seed decides nothing unless a model draws by itself. No inference mode: tensors that a model
    keeps must stay usable in training."""
    model: Any = loaded.model
    place = next(model.parameters()).device
    found: dict[int, tuple[int, ...]] = {}
    with evaluating(model), quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches(sequences, batch_size=batch_size, pad=loaded.pad, accepts=loaded.accepts):
            assert batch.mask is not None
            rows = model.generate(
                input_ids=batch.inputs["input_ids"].to(place),
                attention_mask=batch.mask.long().to(place),
                decoder_start_token_id=loaded.decoder_start,
                do_sample=False,
                num_beams=1,
                min_new_tokens=_SHORTEST,
                max_new_tokens=max(longest, _SHORTEST),
            )
            ends = _ends(model)
            found |= {n: _until_the_end(row[1:], ends) for n, row in zip(batch.samples, rows, strict=True)}
    return tuple(found[number] for number in range(len(sequences)))


def _ends(model: Any) -> tuple[int, ...]:
    """The tokens with which a model says that it is done."""
    end = getattr(model.generation_config, "eos_token_id", None)
    return tuple(end) if isinstance(end, Sequence) else () if end is None else (int(end),)


def _until_the_end(row: Int[Tensor, " token"], ends: tuple[int, ...]) -> tuple[int, ...]:
    """What was written, with the token that ends it; behind that a batch holds padding."""
    ids = tuple(int(token) for token in row)
    done = next((place for place, token in enumerate(ids) if token in ends and place >= _SHORTEST - 1), len(ids) - 1)
    return ids[: done + 1]
