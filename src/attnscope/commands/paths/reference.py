"""What replaces the output of a head: its mean over other texts, its output on other texts, or zero.

The other texts are windows of the embedded book with as many tokens as the text, so that special tokens are at the same
places as in the text. Without a tokenizer they are the text's own tokens in other orders. Means are taken over all
tokens of all texts. Each special token that these texts contain has its own mean, and so have first tokens; without
BOS the first token keeps its output. A model that reads more than one text, or pictures, has no other texts: its
outputs are replaced by those at other tokens of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.paths.effect_record import Replacement
from attnscope.core.errors import RefusalError
from attnscope.data.corpus import Corpus
from attnscope.data.read import read as read_corpus
from attnscope.data.windows import Beginning, windows
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.editing.replacing import EnoughError, HeadOutputs, Place, by_head, output_projection
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading

REPLACEMENTS = ("mean", "resample", "zero")
TOKENS = 512  # tokens of other texts, in
FEWEST, MOST = 4, 32  # windows
SHORTEST = 8  # tokens of a window
DRAWS = 4  # other texts whose effects are averaged by `resample`
SINGLE = frozenset(("input_ids", "attention_mask", "token_type_ids", "use_cache"))

Outputs = Mapping[int, Float[Tensor, "window token head channel"]]


@dataclass(frozen=True, eq=False)
class Reference:
    """Replacements for the outputs of heads. `words` say where they come from."""

    words: str
    outputs: Mapping[int, Float[Tensor, "draw token head channel"]]

    @property
    def draws(self) -> int:
        return len(next(iter(self.outputs.values())))

    def of(self, place: Place) -> Float[Tensor, "draw token channel"]:
        block, head = place
        return self.outputs[block][:, :, head]


def reference(loaded: Loaded, read: Reading, heads: HeadOutputs, by: Replacement, seed: int) -> Reference:
    """Return what replaces the outputs of all heads."""
    own = heads.outputs
    if by == "zero":
        return Reference("zero", {block: torch.zeros_like(one)[None] for block, one in own.items()})
    generator = torch.Generator().manual_seed(seed)
    if read.ids is None or not set(read.batch) <= SINGLE or loaded.decoder_start is not None or len(read.ids) < 2:
        return Reference("the other tokens of the input", {b: _of_its_own(o, by, generator) for b, o in own.items()})
    ids, words = _book(loaded, read, seed), "windows of {} tokens from the embedded book"
    if ids is None:
        ids, words = _shuffled(read.ids, read.beginning, generator), "other orders of the {} tokens of the text"
    if by == "resample":
        ids = ids[:: len(ids) // DRAWS][:DRAWS]
    outputs = _outputs(loaded, ids.to(read.ids.device), heads.sites)
    words = f"{len(ids)} {words.format(ids.shape[1])}"
    if by == "resample":
        return Reference(words, {block: found[:, : len(read.ids)] for block, found in outputs.items()})
    pools = _pools(loaded, read.ids, ids.to(read.ids.device))
    means = {block: _means(found, pools) for block, found in outputs.items()}
    if read.beginning is None or not read.beginning.begins:
        # Without BOS the first tokens of texts are a few different words, and the mean of so few is mostly chance.
        means = {block: torch.cat([own[block][:1], mean[1:]]) for block, mean in means.items()}
    return Reference(words, {block: mean[None] for block, mean in means.items()})


def _of_its_own(
    own: Float[Tensor, "token head channel"], by: Replacement, generator: torch.Generator
) -> Float[Tensor, "draw token head channel"]:
    """Return the mean of all outputs but the first, or these outputs in random orders; the first stays as it is."""
    tokens = len(own)
    if by == "mean":
        later = own[1:].mean(0, keepdim=True).expand_as(own[1:]) if tokens > 1 else own[1:]
        return torch.cat([own[:1], later])[None]
    drawn = [1 + torch.randperm(tokens - 1, generator=generator) for _ in range(DRAWS)]
    return torch.stack([own[torch.cat([torch.zeros(1, dtype=torch.long), rows]).to(own.device)] for rows in drawn])


def _number(tokens: int) -> int:
    return min(MOST, max(FEWEST, TOKENS // tokens))


def _book(loaded: Loaded, read: Reading, seed: int) -> Int[Tensor, "window token"] | None:
    """Return windows of the embedded book with as many tokens as the text, spread over the book; None without them."""
    if loaded.tokenizer is None:
        return None
    tokens = max(len(read.words), SHORTEST)
    number = _number(tokens)
    (book,) = read_corpus().documents
    step, length = len(book) // number, 64 + 16 * tokens
    starts = [book.find(" ", place * step) for place in range(number)]
    pieces = Corpus.of("windows of the embedded book", [book[start : start + length] for start in starts])
    limits: dict[str, Any] = {"positions": loaded.positions, "vocab_size": loaded.vocab_size, "short": True}
    try:
        found = windows(pieces, loaded.tokenizer, max_tokens=tokens, seed=seed, beginning=read.beginning, **limits)
    except RefusalError:
        return None  # a tokenizer that cannot read the book
    first = {window.document: window.ids for window in reversed(found.sequences) if len(window.ids) == tokens}
    return torch.tensor(list(first.values())) if len(first) >= FEWEST else None


def _shuffled(
    own: Int[Tensor, " token"], beginning: Beginning | None, generator: torch.Generator
) -> Int[Tensor, "order token"]:
    """Return the tokens of the text in other orders; BOS stays first."""
    kept = int(beginning is not None and beginning.begins)
    orders = [torch.randperm(len(own) - kept, generator=generator) + kept for _ in range(_number(len(own)))]
    return torch.stack([own.cpu()[torch.cat([torch.arange(kept), order])] for order in orders])


def _outputs(loaded: Loaded, ids: Int[Tensor, "window token"], sites: Mapping[int, Site]) -> Outputs:
    """Run the model on other texts up to the last output projection."""
    inputs: dict[str, Any] = {"input_ids": ids}
    if "use_cache" in loaded.accepts:
        inputs["use_cache"] = False
    found: dict[int, Tensor] = {}

    def keep(site: Site, last: bool) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[site.layer] = by_head(args[0], site)
            if last:
                raise EnoughError

        return hook

    with Restoring() as changes, evaluating(loaded.model), without_cache(loaded.model), torch.no_grad():
        for block, site in sites.items():
            changes.before(output_projection(loaded.model, site), keep(site, block == max(sites)))
        with suppress(EnoughError):
            loaded.model(**inputs)
    return found


def _pools(loaded: Loaded, own: Int[Tensor, " token"], ids: Int[Tensor, "window token"]) -> list[Tensor]:
    """Return, for every token of the text, which tokens of the windows replace it."""
    special = torch.tensor(sorted(getattr(loaded.tokenizer, "all_special_ids", ())), device=ids.device)
    first = torch.zeros_like(ids, dtype=torch.bool)
    first[:, 0] = True
    plain = ~first & ~torch.isin(ids, special)
    pools = []
    for place, token in enumerate(own):
        alike = (ids == token) & ~first if bool(torch.isin(token, special)) else plain
        pools.append(first if place == 0 else alike if bool(alike.any()) else plain)
    return pools


def _means(
    found: Float[Tensor, "window token head channel"], pools: list[Tensor]
) -> Float[Tensor, "token head channel"]:
    known: dict[int, Tensor] = {}
    for pool in pools:
        if id(pool) not in known:
            known[id(pool)] = found[pool].mean(0)
    return torch.stack([known[id(pool)] for pool in pools])
