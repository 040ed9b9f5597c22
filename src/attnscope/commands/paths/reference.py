"""What replaces the output of a head: its mean over other texts, its output on other texts, or zero.

`other_texts` chooses the other texts. Means are taken over all tokens of all texts. Each special token that these texts
contain has its own mean, and so have first tokens; without BOS the first token keeps its output. A model that reads
more than one text, or pictures, has no other texts: its outputs are replaced by those at other tokens of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.commands.paths.effect_record import Replacement
from attnscope.commands.paths.other_texts import FEWEST, Source, other_texts
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.editing.replacing import EnoughError, HeadOutputs, Place, by_head, output_projection
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading

REPLACEMENTS = ("mean", "resample", "zero")
DRAWS = 4  # other texts whose effects are averaged by `resample`
SINGLE = frozenset(("input_ids", "attention_mask", "token_type_ids", "use_cache"))

Outputs = Mapping[int, Float[Tensor, "window token head channel"]]


@dataclass(frozen=True, eq=False)
class Reference:
    """Replacements for the outputs of heads. `words` say where they come from, and `note` why, if it is unusual."""

    words: str
    outputs: Mapping[int, Float[Tensor, "draw token head channel"]]
    note: str = ""

    @property
    def draws(self) -> int:
        return len(next(iter(self.outputs.values())))

    def of(self, place: Place) -> Float[Tensor, "draw token channel"]:
        block, head = place
        return self.outputs[block][:, :, head]


def reference(
    loaded: Loaded, read: Reading, heads: HeadOutputs, by: Replacement, seed: int, source: Source | None = None
) -> Reference:
    """Return what replaces the outputs of all heads. `source` are other texts, if the caller has some."""
    own = heads.outputs
    if by == "zero":
        return Reference("zero", {block: torch.zeros_like(one)[None] for block, one in own.items()})
    if read.ids is None or not set(read.batch) <= SINGLE or loaded.decoder_start is not None or len(read.ids) < 2:
        if source is not None:
            raise RefusalError(
                f"{loaded.name} does not read one text of two tokens or more here, so no other texts replace it: leave "
                "`reference=` out.",
                "reference",
            )
        generator = torch.Generator().manual_seed(seed)
        return Reference("the other tokens of the input", {b: _of_its_own(o, by, generator) for b, o in own.items()})
    texts = other_texts(loaded, read, heads.network.output, source, seed)
    rows, words = texts.rows, texts.words
    if by == "resample":
        rows = tuple(row for row in rows if len(row) >= len(read.ids))
        if len(rows) < FEWEST:
            raise RefusalError(
                f"`effects='resample'` needs {FEWEST} other texts of {len(read.ids)} tokens, and the reference has "
                f"{len(rows)}: give longer texts, or take means.",
                "reference",
            )
        rows = rows[:: len(rows) // DRAWS][:DRAWS]
        words = f"{len(rows)} {words.partition(' ')[2]}"
        outputs = _outputs(loaded, torch.stack(rows).to(read.ids.device), heads.sites)
        return Reference(words, {block: found[:, : len(read.ids)] for block, found in outputs.items()}, texts.note)
    tokens = _Tokens.of(loaded, [row.to(read.ids.device) for row in rows], heads.sites)
    means = tokens.means(loaded, read.ids)
    if read.beginning is None or not read.beginning.begins:
        # Without BOS the first tokens of texts are a few different words, and the mean of so few is mostly chance.
        means = {block: torch.cat([own[block][:1], mean[1:]]) for block, mean in means.items()}
    return Reference(words, {block: mean[None] for block, mean in means.items()}, texts.note)


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


@dataclass(frozen=True, eq=False)
class _Tokens:
    """All tokens of the other texts, one after the other, and the outputs of heads at them."""

    ids: Int[Tensor, " token"]
    first: Bool[Tensor, " token"]  # whether a token is the first of its text
    outputs: Mapping[int, Float[Tensor, "token head channel"]]

    @classmethod
    def of(cls, loaded: Loaded, rows: list[Int[Tensor, " token"]], sites: Mapping[int, Site]) -> _Tokens:
        """Run the model on all texts; those of equal length share a batch."""
        alike = [torch.stack([row for row in rows if len(row) == n]) for n in dict.fromkeys(map(len, rows))]
        found = [_outputs(loaded, ids, sites) for ids in alike]
        first = [torch.zeros_like(ids, dtype=torch.bool) for ids in alike]
        for begins in first:
            begins[:, 0] = True
        return cls(
            torch.cat([ids.flatten() for ids in alike]),
            torch.cat([begins.flatten() for begins in first]),
            {block: torch.cat([some[block].flatten(0, 1) for some in found]) for block in found[0]},
        )

    def means(self, loaded: Loaded, own: Int[Tensor, " own"]) -> dict[int, Float[Tensor, "own head channel"]]:
        """Return, for every block and token of the text, the mean over the tokens that replace it."""
        pools = self._pools(loaded, own)
        return {block: _means(found, pools) for block, found in self.outputs.items()}

    def _pools(self, loaded: Loaded, own: Int[Tensor, " own"]) -> list[Bool[Tensor, " token"]]:
        special = torch.tensor(sorted(getattr(loaded.tokenizer, "all_special_ids", ())), device=self.ids.device)
        first, plain = self.first, ~self.first & ~torch.isin(self.ids, special)
        pools = []
        for place, token in enumerate(own):
            alike = (self.ids == token) & ~first if bool(torch.isin(token, special)) else plain
            pools.append(first if place == 0 else alike if bool(alike.any()) else plain)
        return pools


def _means(found: Float[Tensor, "token head channel"], pools: list[Tensor]) -> Float[Tensor, "own head channel"]:
    known: dict[int, Tensor] = {}
    for pool in pools:
        if id(pool) not in known:
            known[id(pool)] = found[pool].mean(0)
    return torch.stack([known[id(pool)] for pool in pools])
