"""Explain a continuation token by token, or the similarity of two inputs.

    explain(model, "The capital of France is", target=" Paris, and")          explain(model, text, generate=8)

A continuation is a target of several tokens, or what the model writes next. The model reads all of its tokens except
the last, because each is predicted from those before it. The explained number is the sum of all their logits. Each
logit is explained alone too, which gives a matrix of tokens read by tokens that followed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnscope.commands.explain.aiming import Question, in_streams, of_terms
from attnscope.commands.explain.record import Asked, Explanation, Scored, Step
from attnscope.commands.explain.running import Run
from attnscope.commands.explain.tried import Trial, Tried
from attnscope.core.errors import RefusalError
from attnscope.core.explanation import LONGEST_CONTINUATION as MOST
from attnscope.core.explanation import Method
from attnscope.core.progress import Advance
from attnscope.data.medium import medium
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.intercepting.restoring import evaluating, without_cache
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import word
from attnscope.hf.tapping.capture import capture

FIRST, SECOND = "first", "second"
CHEAP = ("one backward pass", "one forward pass")  # cost of methods that explain every token
FEWEST = 2


def two_to_compare(loaded: Loaded, sources: tuple[Any, ...]) -> bool:
    """Return whether to compare two texts or two pictures: if there is no decoder for the second and no token head."""
    if len(sources) != 2 or loaded.decoder_start is not None or loaded.kind in ("causal", "multimodal"):
        return False
    media = [medium(side) is not None for side in sources]
    return all(media) or (not any(media) and all(isinstance(side, str) for side in sources) and loaded.reads_text)


def of_both(
    loaded: Loaded, sources: tuple[Any, ...], question: Question, explain: Callable[[Any, Question], Explanation]
) -> Explanation:
    """Explain the similarity of two inputs by the tokens of both."""
    if question.against is not None:
        raise RefusalError("Two inputs are compared with each other: omit `against=`, or give one input.")
    try:
        sides = [explain(mine, replace(question, against=other)) for mine, other in (sources, sources[::-1])]
    except RefusalError as refusal:
        if any(word in str(refusal) for word in ("tokens (", "is not in the vocabulary", "There is no class")):
            raise RefusalError(
                f"{loaded.name} ({loaded.class_name}) has a head, so it has no embedding to compare: give one text, or "
                "the encoder without its head."
            ) from None
        raise
    first, second = sides
    inputs = tuple(
        replace(read, name=name) for side, name in zip(sides, (FIRST, SECOND), strict=True) for read in side.inputs
    )
    others = {method.name: method for method in second.methods}
    methods = tuple(
        replace(m, scores=(*m.scores, *others[m.name].scores), adds_up=None, sums_to=_sum_of_both(m, others[m.name]))
        for m in first.methods
        if m.name in others
    )
    asked = Asked("similarity", word=first.text, other=second.text)
    return replace(
        first,
        inputs=inputs,
        methods=methods,
        lengths=None,  # they would describe one side only
        trial=_trial_of_both(first.trial, second.trial),
        asked=asked,
        target=asked.words,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _trial_of_both(first: Trial | None, second: Trial | None) -> Trial | None:
    """Join the trials of two texts. Methods were compared with the trial of one side each, so that is left out."""
    if first is None or second is None:
        return None

    def named(words: tuple[Tried, ...], name: str) -> list[Tried]:
        return [replace(word, input=name) for word in words]

    words = named(first.words, FIRST) + named(second.words, SECOND)
    pairs = named(first.pairs, FIRST) + named(second.pairs, SECOND)
    return Trial(
        unit=first.unit,
        before=first.before,
        words=tuple(sorted(words, key=lambda word: -word.effect)),
        pairs=tuple(sorted(pairs, key=lambda pair: -pair.effect)),
        inputs=first.inputs + second.inputs,
        least=first.least,
    )


def _sum_of_both(one: Scored, other: Scored) -> float | None:
    """Return what the scores of both sides should add up to."""
    return None if one.sums_to is None or other.sums_to is None else one.sums_to + other.sums_to


def refuse_unusable(question: Question) -> None:
    """Refuse arguments that are wrong for any model."""
    if _count(question) is not None and question.target is not None:
        raise RefusalError("`target=` gives a continuation and `generate=` lets the model write one: omit one of them.")


def continued(loaded: Loaded, read: Reading, question: Question) -> Reading:
    """Return the input with the requested continuation appended, or a sound with the text that the decoder writes."""
    generate = _count(question)
    # Only for a sound that was read from a file: for a ready batch, the next token is explained.
    speaks = any(scene.seconds is not None for scene in read.scenes) and "decoder_input_ids" in read.batch
    if generate is not None:
        if loaded.kind == "causal":
            return _behind(loaded, read, _written(loaded, read, generate))
        return _of_decoder(loaded, read, generate)
    if speaks and question.target is None and question.position is None and question.against is None:
        return _of_decoder(loaded, read, MOST)
    if loaded.kind == "causal" and isinstance(question.target, str) and read.ids is not None:
        ids = _several(loaded, question.target)
        return read if ids is None else _behind(loaded, read, ids)
    return read


def steps_of(whole: Run, scored: tuple[Scored, ...], chosen: tuple[Method, ...], progress: Advance) -> tuple[Step, ...]:
    """Explain each token of the continuation alone, with the methods that need one pass."""
    known = {method.name for method in scored}
    methods = [m for m in chosen if m.card.name in known and m.card.cost in CHEAP and m.card.group == "default"]
    if not methods:
        return ()
    terms = whole.aim.terms
    steps = []
    for number, term in enumerate(terms):
        progress("token by token", number, len(terms))
        aim = of_terms(whole.captured.output, (term,), whole.aim.goal, term[0])
        captured = capture(whole.loaded.model, whole.read.batch, whole.found, whole.places, aim.number)
        run_of_token = replace(whole, aim=aim, captured=in_streams(captured, whole.places))
        rows = []
        for method in methods:
            found = run_of_token.explained_by(method)
            rows.append(tuple(tuple(found[p.stack].tolist()) if p.stack in found else () for p in whole.places))
        names = tuple(method.card.name for method in methods)
        steps.append(Step(word(whole.loaded.tokenizer, term[1]), captured.value, names, tuple(rows)))
    progress("token by token", len(terms), len(terms))
    return tuple(steps)


def _count(question: Question) -> int | None:
    number = question.generate
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
        raise RefusalError(f"`generate=` must be 1 to {MOST} tokens, not {number}.")
    return number


def _several(loaded: Loaded, target: str) -> tuple[int, ...] | None:
    """Return the tokens of a target; None if it is a single token, or invalid (then it is refused elsewhere)."""
    tokenizer: Any = loaded.tokenizer
    if tokenizer is None or tokenizer.get_vocab().get(target) is not None:
        return None
    try:
        ids = tuple(int(i) for i in tokenizer(target, add_special_tokens=False)["input_ids"])
    except (UnicodeEncodeError, TypeError):
        return None
    if len(ids) < FEWEST or tokenizer.unk_token_id in ids:
        return None
    if len(ids) > MOST:
        raise RefusalError(f"The target has {len(ids)} tokens, and at most {MOST} can be explained: shorten it.")
    return ids


def _behind(loaded: Loaded, read: Reading, ids: tuple[int, ...]) -> Reading:
    """Append all tokens but the last to the text: the last is predicted and not read."""
    before: Tensor = read.batch["input_ids"]
    longer = torch.cat([before, before.new_tensor([ids[:-1]])], dim=1)
    if loaded.positions is not None and longer.shape[1] > loaded.positions:
        raise RefusalError(
            f"The text and its continuation have {longer.shape[1]} tokens, and {loaded.name} reads at most "
            f"{loaded.positions}: shorten one of them."
        )
    batch = {**read.batch, "input_ids": longer}
    if isinstance(batch.get("attention_mask"), Tensor):
        batch["attention_mask"] = torch.ones_like(longer)
    for name in set(batch) - {"input_ids", "attention_mask"}:
        value = batch[name]
        if isinstance(value, Tensor) and value.shape[:2] == before.shape:
            raise RefusalError(f"The batch has {name} for every token, and a continuation has none: omit it.")
    words = tuple(word(loaded.tokenizer, int(i)) for i in longer[0])
    return replace(read, batch=batch, ids=longer[0], words=words, continued=ids)


def _written(loaded: Loaded, read: Reading, count: int) -> tuple[int, ...]:
    """Return the tokens that the model writes next by greedy decoding."""
    if "input_ids" not in read.batch:
        raise RefusalError(f"{loaded.name} ({loaded.class_name}) cannot continue this input: omit `generate=`.")
    model: Any = loaded.model
    ids: Tensor = read.batch["input_ids"]
    made: list[int] = []
    end = getattr(getattr(model, "config", None), "eos_token_id", None)
    ends = set(end) if isinstance(end, list | tuple) else {end}
    with evaluating(model), without_cache(model), torch.no_grad():
        while len(made) < count:
            token = int(first_output(run(model, {"input_ids": ids}))[0, -1].argmax())
            made.append(token)
            if token in ends:
                break
            ids = torch.cat([ids, ids.new_tensor([[token]])], dim=1)
            if loaded.positions is not None and ids.shape[1] > loaded.positions:
                raise RefusalError(
                    f"The text and {count} more tokens exceed the {loaded.positions} that {loaded.name} reads: shorten "
                    "the text, or generate fewer."
                )
    return tuple(made)


def _of_decoder(loaded: Loaded, read: Reading, count: int) -> Reading:
    """Use the tokens that the decoder read as the continuation. Each is predicted one position earlier."""
    ids = read.batch.get("decoder_input_ids")
    if not isinstance(ids, Tensor):
        raise RefusalError(
            f"{loaded.name} ({loaded.class_name}) writes no text: omit `generate=`, or choose a language model."
        )
    first = read.opening
    row = tuple(int(token) for token in ids[0, first : first + count])
    if not row:
        raise RefusalError("The decoder read no token that can be explained: give a longer target.")
    shorter = ids[:, : first + len(row) - 1]
    batch = {**read.batch, "decoder_input_ids": shorter}
    if isinstance(batch.get("decoder_attention_mask"), Tensor):
        batch["decoder_attention_mask"] = torch.ones_like(shorter)
    return replace(read, batch=batch, ids=shorter[0], words=read.words[: shorter.shape[1]], continued=row)
