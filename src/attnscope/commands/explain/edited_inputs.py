"""Run a model on its input with other words, and read its answer and how likely the text still is.

    edited = EditedInputs(whole, inputs)
    edited.answers([(edit,) for edit in edited.edits(part).all])

Rows run in a few batches. A causal model computes only the tokens from the first edited one on, where its cache allows
that (`hf.tapping.suffixes`); other models compute the whole input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.explain.parts import Part
from attnscope.commands.explain.record import Input
from attnscope.commands.explain.replacing import Vocabulary
from attnscope.commands.explain.running import Run
from attnscope.commands.explain.tried import Chosen, Replacement, Trial, Tried, scaled
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.outputs import entries
from attnscope.hf.tapping.capture import output_with
from attnscope.hf.tapping.suffixes import Prefix, in_calls, shared_prefix

SOFTNESS = 4.0  # nats by which a text may become less likely before a replacement counts e times less
REPLACEMENTS = 3  # of a word, by each source of replacements
CONFIRMING = 4  # further replacements of the words with the largest effects
FIRST_OF_LONG, AGAIN_OF_LONG = 1, 3  # the same in a long text
LARGEST_OUTPUT = 2**26  # numbers of output in memory at once
LEAST_COSINE = 0.05  # the smallest change of a cosine that counts
KINDS = ("logit", "continuation")  # of targets whose answer is a probability


@dataclass(frozen=True)
class Edit:
    """Other vectors, or other tokens, at some tokens of one input."""

    part: Part
    vectors: Float[Tensor, "token width"]
    text: str
    ids: tuple[int, ...] | None = None
    chosen: Chosen = ""


@dataclass(frozen=True)
class Edits:
    """The replacements of one part. Those of `again` are run only if the part had a large effect with the first."""

    first: list[Edit]
    again: list[Edit]

    @property
    def all(self) -> list[Edit]:
        return [*self.first, *self.again]


Parts = tuple[Part, ...]  # one word, or a pair
Row = tuple[Edit, ...]  # the edits of one text
Rows = dict[Parts, list[Row]]


class EditedInputs:
    """The model on inputs with other words. Counts the inputs that it ran on."""

    def __init__(self, whole: Run, inputs: tuple[Input, ...]) -> None:
        self.whole, self.names = whole, inputs
        self.unit: Literal["probability", "number"] = "probability" if whole.aim.goal.kind in KINDS else "number"
        self.least = LEAST_COSINE if whole.aim.goal.kind == "similarity" else 0.0
        self.inputs = 0
        self.vocabularies: dict[str, Vocabulary] = {}
        output = whole.captured.output
        self.predicts = whole.loaded.kind == "causal" and output.ndim == 3 and output.shape[1] == self._ids(()).shape[1]
        self.before = float(self._answer(output)[0])
        self._likely = self._log_probabilities(output, self._ids(()), 0)[0]

    def edits(self, part: Part, long: bool = False) -> Edits:
        """Return the replacements of one part; in a long text, most of them are left for later."""
        place = self.whole.places[part.place]
        media = not place.looks_up
        made = [Edit(part, vectors, text) for text, vectors in self._media(part)] if media else self._words(part)
        first = REPLACEMENTS * (2 if self.predicts else 1)
        first, again = (FIRST_OF_LONG, AGAIN_OF_LONG) if long else (first, CONFIRMING)
        return Edits(made[:first], made[first : first + again])

    def _words(self, part: Part) -> list[Edit]:
        """Return other words for a word: likely and similar ones in turn, if the model predicts its text."""
        place = self.whole.places[part.place]
        ids = self.whole.read.batch[place.argument][0].tolist()
        vocabulary = self._vocabulary(part.place)
        own = [ids[token] for token in part.tokens]
        if any(vocabulary.special(token) for token in own):
            return []
        if self.predicts:
            begin, most = part.tokens[0], 2 * REPLACEMENTS + CONFIRMING
            logits = self.whole.captured.output[0, begin - 1].detach() if begin else None
            similar = dict.fromkeys(vocabulary.nearest(own, most), "similar")
            likely = dict.fromkeys(vocabulary.likeliest(own, most, logits), "likely")
            turns = zip_longest(likely.items(), similar.items())
            rows: dict[tuple[int, ...], Any] = {}
            for row, chosen in (one for turn in turns for one in turn if one is not None):
                rows.setdefault(row, chosen)
        else:
            gradient = self.whole.captured.embedding_gradient[place.stack][list(part.tokens)]
            rows = dict.fromkeys(vocabulary.nearest(own, REPLACEMENTS + CONFIRMING, gradient), "lowering")
        table = vocabulary.table
        with torch.no_grad():
            vectors = [table.forward(torch.tensor(row, device=table.weight.device)) for row in rows]
        made = zip(vectors, rows.items(), strict=True)
        return [Edit(part, vector, vocabulary.spelt(row), row, chosen) for vector, (row, chosen) in made]

    def answers(self, rows: list[Row]) -> list[Replacement]:
        """Return the answer for each row. Rows run in batches."""
        largest, tokens = self.whole.captured.output.numel(), 0
        begins = [0] * len(rows)
        if self.prefix is not None:
            largest, tokens = max(largest, self.prefix.numbers), self._ids(()).shape[1]
            begins = [min(token for edit in row for token in edit.part.tokens) for row in rows]
        found: dict[int, Replacement] = {}
        for call in in_calls(begins, tokens, max(1, LARGEST_OUTPUT // max(1, largest))):
            found.update(zip(call, self._run([rows[number] for number in call], begins[call[0]]), strict=True))
        return [found[number] for number in range(len(rows))]

    @cached_property
    def prefix(self) -> Prefix | None:
        """What all rows have in common, if the model is causal and has a plain cache."""
        whole = self.whole
        if whole.loaded.kind != "causal":
            return None
        return shared_prefix(whole.loaded.model, whole.read.batch, whole.places, whole.captured)

    def tried(self, parts: Parts, replacements: list[Replacement]) -> Tried:
        return Tried(
            input=self.names[parts[0].place].name,
            tokens=tuple(token for part in parts for token in part.tokens),
            word=" and ".join(map(_quoted, parts)) if len(parts) > 1 else parts[0].word,
            replacements=tuple(replacements),
            effect=self._effect(replacements),
        )

    def tried_again(self, tried: Tried, again: list[Replacement]) -> Tried:
        """Return a tried word with further replacements."""
        return replace(tried, again=tuple(again), effect=self._effect((*tried.replacements, *again)))

    def _effect(self, replacements: Sequence[Replacement]) -> float:
        """Return the mean fall of the answer, on the scale of effects, each replacement weighted by its fit."""
        before = scaled(self.before, self.unit)
        falls = [one.fit * (before - scaled(one.answer, self.unit)) for one in replacements]
        return math.fsum(falls) / len(falls)

    def falls(self, tried: Tried) -> bool:
        """Return whether the answer falls notably, however many replacements there are."""
        return not self._alone.unmoved(tried)

    def takes(self, tried: Tried) -> bool:
        """Return whether the answer falls by a third in the median."""
        return self._alone.takes(tried.every)

    def decides(self, tried: Tried) -> bool:
        return self._alone.decides(tried)

    def taking(self, tried: Tried) -> list[Replacement]:
        return self._alone.taking(tried)

    def alike(self, part: Part, other: Part) -> bool:
        """Return whether two words have as many tokens, of the same kinds, so that one can stand for the other."""
        if part.place != other.place or len(part.tokens) != len(other.tokens):
            return False
        ids = self.whole.read.batch[self.whole.places[part.place].argument][0].tolist()
        kind = self._vocabulary(part.place).kind
        pairs = zip(part.tokens, other.tokens, strict=True)
        return all(kind(ids[mine]) == kind(ids[its]) for mine, its in pairs)

    @property
    def _alone(self) -> Trial:
        """A trial without words, for what is known of one word."""
        return Trial(self.unit, self.before, (), fitted=self.predicts, least=self.least)

    def _run(self, rows: Sequence[Row], begin: int) -> list[Replacement]:
        """Run one batch, in which tokens before `begin` are unchanged. If memory runs out, halve it."""
        try:
            output = self._output(rows, begin)
        except RuntimeError as error:
            if not out_of_memory(error) or len(rows) < 2:
                raise
            half = len(rows) // 2
            return [*self._run(rows[:half], begin), *self._run(rows[half:], begin)]
        self.inputs += len(rows)
        unchanged = max(begin - 1, 0)  # of the predictions: the token at `begin` is predicted from the one before it
        likely = self._log_probabilities(output, torch.cat([self._ids(edits) for edits in rows]), unchanged).sum(-1)
        gained = (likely - self._likely[unchanged:].sum()) / SOFTNESS
        fits = gained.clamp(max=0).exp().tolist()
        found = zip(rows, self._answer(output).tolist(), fits, self._others(output), strict=True)
        return [
            Replacement(_texts(row), answer, fit, *other, row[0].chosen if len(row) == 1 else "")
            for row, answer, fit, other in found
        ]

    def _output(self, rows: Sequence[Row], begin: int) -> Float[Tensor, " row *shape"]:
        whole = self.whole
        vectors = {p.stack: whole.captured.embedding[p.stack].expand(len(rows), -1, -1).clone() for p in whole.places}
        for number, edits in enumerate(rows):
            for edit in edits:
                entering = vectors[whole.places[edit.part.place].stack]
                entering[number, list(edit.part.tokens)] = edit.vectors.to(entering)
        if begin and self.prefix is not None:
            try:
                after = self.prefix.output_with(begin, vectors[whole.places[0].stack][:, begin:])
                return torch.cat([whole.captured.output[:, :begin].expand(len(rows), -1, -1), after], 1)
            except Exception as error:  # whatever is wrong with the cache, whole texts need none
                if isinstance(error, RuntimeError) and out_of_memory(error):
                    raise
                self.prefix = None
        with torch.no_grad():
            return output_with(whole.loaded.model, whole.read.batch, whole.places, vectors)

    def _answer(self, output: Tensor) -> Tensor:
        aim = self.whole.aim
        return (aim.chance if self.unit == "probability" else aim.number)(_exact(output)).double()

    def _others(self, output: Tensor) -> list[tuple[str, float]]:
        """Return the most likely token or class of each row and its probability; none if it is what it was before."""
        aim = self.whole.aim
        if aim.goal.kind != "logit" or not aim.terms or output.shape[-1] == 1:
            return [("", 0.0)] * len(output)
        place = aim.terms[0][0]
        found = entries(self.whole.loaded, output)
        own = self.whole.captured.output
        said = int((own[0] if place is None else own[0, place]).argmax())
        best = _exact(output if place is None else output[:, place]).softmax(-1).max(-1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [("", 0.0) if entry == said else (found.word(entry), min(sure, 1.0)) for entry, sure in pairs]

    def _ids(self, edits: Sequence[Edit]) -> Int[Tensor, "1 token"]:
        """Return the tokens of the last input with some edits; empty if it has no tokens."""
        place = self.whole.places[-1]
        if not place.looks_up:
            return torch.zeros(1, 0, dtype=torch.long)
        ids: Tensor = self.whole.read.batch[place.argument].clone()
        for edit in edits:
            if edit.ids is not None and edit.part.place == len(self.whole.places) - 1:
                ids[0, list(edit.part.tokens)] = torch.tensor(edit.ids, device=ids.device)
        return ids

    def _log_probabilities(
        self, output: Tensor, ids: Int[Tensor, "batch token"], skipped: int
    ) -> Float[Tensor, "batch prediction"]:
        """Return the log probability of each token before the answer, without the first `skipped` predictions.

        It is empty for models that do not predict their text.
        """
        whole = self.whole
        stop = ids.shape[1] - max(len(whole.read.continued) - 1, 0)
        if whole.aim.position is not None:
            stop = min(stop, whole.aim.position + 1)
        if not self.predicts or stop - 1 <= skipped:
            return torch.zeros(len(ids), 0)
        logits = _exact(output[:, skipped : stop - 1])
        own = logits.gather(-1, ids[:, skipped + 1 : stop, None]).squeeze(-1)
        return (own - logits.logsumexp(-1)).double()

    def _vocabulary(self, place: int) -> Vocabulary:
        path = self.whole.places[place].path
        if path not in self.vocabularies:
            table = self.whole.loaded.model.get_submodule(path)
            assert isinstance(table, nn.Embedding)
            self.vocabularies[path] = Vocabulary(table, self.whole.loaded.tokenizer)
        return self.vocabularies[path]

    def _media(self, part: Part) -> list[tuple[str, Tensor]]:
        """Return a blank part, one with the mean of the whole picture or sound, and one from elsewhere in it."""
        place = self.whole.places[part.place]
        blank = self.whole.baseline()[place.stack]
        begin, end = part.among
        content = (self.whole.captured.embedding[place.stack] - blank)[begin:end]
        tokens = torch.tensor(part.tokens)
        elsewhere = content[(tokens - begin + len(content) // 2) % len(content)]
        mine = blank[tokens]
        return [("blank", mine), ("the mean of all", mine + content.mean(0)), ("another part", mine + elsewhere)]


def _exact(output: Tensor) -> Tensor:
    """Return an output in float32 or better: a softmax in half precision is off by percents."""
    return output.to(torch.promote_types(output.dtype, torch.float32)) if output.is_floating_point() else output


def _texts(row: Row) -> str:
    """Return what takes the place of a part; of two words each in quotes."""
    words = [edit.text if edit.part.among != (0, 0) or len(row) == 1 else f"'{edit.text}'" for edit in row]
    return words[0] if len(set(words)) == 1 and row[0].part.among != (0, 0) else " and ".join(words)


def _quoted(part: Part) -> str:
    return part.word if part.among != (0, 0) else f"'{part.word}'"  # patches and moments have names
