"""`attnscope.explain`: which part of the input decided, by several methods side by side.

The model runs with its fused attention on and gives its own numbers, bit for bit; no attention map is kept
(`docs/relevance.md` has the derivation). A method that does not fit a model is skipped with a note, or refused if it
was named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor, nn

from attnscope.commands.explain.aiming import Aim, Question, aim, in_streams
from attnscope.commands.explain.continuing import continued, of_both, refuse_unusable, steps_of, two_to_compare
from attnscope.commands.explain.record import ByLength, Explanation, Scored
from attnscope.commands.explain.running import Run, baseline_words, inputs_of, start_of
from attnscope.commands.explain.sizes import fitting, refuse_long_text, told
from attnscope.commands.explain.trial import trial as try_on_model
from attnscope.core.errors import RefusalError
from attnscope.core.explanation import Method
from attnscope.core.progress import Advance, silent
from attnscope.core.registry import METHOD_SETS, chosen_methods, method_names
from attnscope.data.medium import readable
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.intercepting.restoring import evaluating, looking_at, with_gradients, without_cache, without_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load, precision_and_place, refusing_what_does_not_run
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.options import Loading, Sampling, TextOptions, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.capture import capture
from attnscope.hf.tapping.entrances import Entrance, entrances

LENGTHS_OF = "path_contribution"


@with_options(TextOptions)
@with_gradients()
def explain(
    model: str | Path | nn.Module | Loaded,
    text: Any,
    beside: Any | None = None,
    *,
    target: str | int | None = None,
    against: Any | None = None,
    position: int | None = None,
    generate: int | None = None,
    head: Any | None = None,
    methods: str | Iterable[str] = "default",
    trial: bool = True,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(),
    tokenizer: Tokenizer | None = None,
    processor: Any | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[TextOptions],
) -> Explanation:
    """Explain which part of the input decided one number of a model's output.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model.
    text : str, Path, array, image, tuple or mapping
        A text or a text file, a picture, a sound, a pair of inputs, or a ready batch of one sequence.
    beside : optional
        A second input: the target of an encoder-decoder, the text that goes with a picture or
        sound, or an input to compare with.
    target : str or int, optional
        A token, a continuation of several tokens, or a class. Default: what the model finds most likely.
    against : optional
        A second token or class: explain the difference of logits. For models without logits, another text or picture.
    position : int, optional
        The token whose output is explained. Default: the last one, or the first mask.
    generate : int, optional
        Let the model write this many tokens and explain them, together and one by one.
    head : optional
        A linear head on the embedding, for models without logits.
    methods : str or iterable of str
        Names of explanations, or of the sets "default", "slow" and "all".
    trial : bool
        Replace the words that methods name and run the model on each text. Without a trial there is no verdict.
    loading, sampling : Loading, Sampling
        How the model is loaded and how the text begins.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, bos : see `Loading` and `Sampling`
        Fields of both as keywords.
    tokenizer, processor : optional
        The tokenizer of a model in memory, and the processor of pictures and sounds (default: the model's own).
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Explanation
        A number for every token by each method.

    Raises
    ------
    RefusalError
        If the input cannot be read, or a method that was named does not fit the model.

    Examples
    --------
    >>> found = attnscope.explain("pocket", "The dog chased its own tail and the")
    """
    words = method_names(methods)
    chosen = Chosen(chosen_methods(words), frozenset(words) - frozenset(METHOD_SETS))
    reading = partial(reading_of, bos=sampling.bos, processor=processor)
    question = Question(target, against, position, head, generate, reading)
    refuse_unusable(question)
    source = readable(text if beside is None else (text, beside))
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    explain_one = partial(_explained, loaded, chosen=chosen, trying=trial, seed=loading.seed, progress=progress)
    if isinstance(source, tuple) and two_to_compare(loaded, source):
        return of_both(loaded, source, question, explain_one)
    return explain_one(source, question)


@dataclass(frozen=True)
class Chosen:
    """The methods to run, and those that the caller named."""

    methods: tuple[Method, ...]
    named: frozenset[str]


def _explained(
    loaded: Loaded, source: Any, question: Question, *, chosen: Chosen, trying: bool, seed: int, progress: Advance
) -> Explanation:
    read = question.read(loaded, source)
    with looking_at(loaded.model), quiet(), fitting(len(read.words)):
        refuse_long_text(loaded, read, chosen.methods)
        progress("running the model", 0, 0)
        read = continued(loaded, read, question)
        began = time.monotonic()
        whole = run_on(loaded, read, lambda output: aim(loaded, read, output, question), seed)
        took = time.monotonic() - began
        goal, captured = whole.aim, whole.captured
        scored, left_out = _scored(whole, chosen, progress, took)
        inputs = inputs_of(loaded, read, whole.places, {stack: len(row) for stack, row in captured.embedding.items()})
        asked_lengths = any(method.name == LENGTHS_OF for method in scored)
        lengths = _lengths(whole, inputs[-1].name) if asked_lengths else None
        tried = try_on_model(whole, inputs, scored, progress) if trying else None
        steps = steps_of(whole, scored, chosen.methods, progress) if len(goal.terms) > 1 and read.continued else ()
    return Explanation(
        model=loaded.name,
        class_name=loaded.class_name,
        text=_text_of(source, read),
        inputs=inputs,
        target=goal.goal.words,
        asked=goal.goal,
        position=goal.position,
        value=captured.value,
        dtype=str(precision_and_place(loaded.model)[0]).removeprefix("torch."),
        baseline=baseline_words(loaded, read),
        methods=scored,
        steps=steps,
        lengths=lengths,
        trial=tried,
        notes=(
            *(*goal.notes, *left_out, *_notes(whole.found, read), *_unfollowed(whole, chosen.methods), *read.notes),
            *loaded.notes,
        ),
        provenance=loaded.stamped(
            tokens=sum(len(vectors) for vectors in captured.embedding.values()), **read.bos_note(), seed=seed
        ),
    )


def first_look(
    loaded: Loaded, read: Reading, known: tuple[Anatomy, tuple[Entrance, ...]] | None = None
) -> tuple[Anatomy, tuple[Entrance, ...], Tensor]:
    """Return the anatomy and the entrances of tokens (computed unless `known`), and the output of the model."""
    with refusing_what_does_not_run(loaded, "this input"), without_gradients():
        if known is None:
            found = anatomy(loaded.model, read.batch)
            known = found, entrances(loaded.model, read.batch, found)
        found, places = known
        with evaluating(loaded.model), without_cache(loaded.model):
            output = first_output(run(loaded.model, read.batch))
    if not bool(output.isfinite().all()):
        raise RefusalError(f"{loaded.class_name} gives NaN or infinity on this input: try `dtype='float64'`.")
    return found, places, output


def run_on(
    loaded: Loaded,
    read: Reading,
    aimed_at: Callable[[Tensor], Aim],
    seed: int,
    known: tuple[Anatomy, tuple[Entrance, ...]] | None = None,
) -> Run:
    """Run the model once and capture what explains the number that `aimed_at` picks from its output.

    `explain` and `evaluate` share this function, so that `evaluate` judges the explanations that `explain` gives.
    """
    found, places, output = first_look(loaded, read, known)
    goal = aimed_at(output)
    captured = in_streams(capture(loaded.model, read.batch, found, places, goal.number), places)
    return Run(loaded, read, found, places, goal, captured, seed)


def _scored(
    whole: Run, chosen: Chosen, progress: Advance, first_look: float
) -> tuple[tuple[Scored, ...], tuple[str, ...]]:
    """Return the scores of every method, and notes on methods that were skipped."""
    scored, notes = [], []
    count = len(chosen.methods)
    for number, method in enumerate(chosen.methods):
        card = method.card
        progress(told(method, len(whole.read.words), first_look), number, count)
        try:
            found = whole.explained_by(method)
            _refuse_other_stack(whole, card.name, found)
        except RefusalError as refusal:
            if card.name in chosen.named or count == 1:
                raise
            notes.append(f"{card.title} is left out: {refusal}")
            continue
        rows = tuple(tuple(found[place.stack].tolist()) if place.stack in found else () for place in whole.places)
        wanted = whole.expected_sum(method)
        scored.append(
            Scored(card.name, card.title, card.group, card.signed, rows, card.adds_up, wanted, card.reads_answer)
        )
    progress("explained", count, count)
    if not scored:
        raise RefusalError(f"No method fits {whole.loaded.class_name}: {notes[0]}")
    return tuple(scored), tuple(notes)


def _refuse_other_stack(whole: Run, name: str, found: Mapping[str, Tensor]) -> None:
    if not any(place.stack in found for place in whole.places):
        raise RefusalError(
            f"{name} scores '{', '.join(found)}' of {whole.loaded.class_name}, but tokens enter at "
            f"'{', '.join(place.stack for place in whole.places)}': choose another method."
        )


def _lengths(whole: Run, name: str) -> ByLength:
    """Return the scores of `path_contribution` for the last input, split by how many heads a path passes."""
    tokens, constants = whole.lengths()
    return ByLength(name, tuple(map(tuple, tokens.tolist())), tuple(constants.tolist()))


def _text_of(source: Any, read: Reading) -> str:
    """Return the text, or the name of the file, for the record."""
    if read.scenes:
        return read.scenes[0].name
    if isinstance(source, tuple):
        return str(source[0])
    return source if isinstance(source, str) else ""


def _notes(found: Anatomy, read: Reading) -> tuple[str, ...]:
    notes = []
    if len(read.words) == 1 and len(found.stacks) == 1 and not read.scenes:
        notes.append("The text is a single token, so there is nothing to compare it with.")
    passed = [block for stack in found.stacks for block in stack.blocks if not block.attends]
    if passed:
        kinds = " and ".join(dict.fromkeys(block.kind for block in passed))
        notes.append(
            f"{len(passed)} blocks have no attention ({kinds}): relevance, rollout and raw attention treat them as if "
            "they left every token unchanged."
        )
    return tuple(notes)


def _unfollowed(whole: Run, chosen: tuple[Method, ...]) -> tuple[str, ...]:
    """Return a note on stacks that affect the answer but are not followed, such as another tower."""
    names = [method.card.title.lower() for method in chosen if "start" in method.reads]
    if not names:
        return ()
    try:
        ends = tuple(start_of(whole.captured, whole.found))
    except RefusalError:
        return ()  # noted where the method was skipped
    calls = whole.captured.calls
    followed = {*ends, *(call.keys_from for call in calls if call.stack in ends)}
    others = dict.fromkeys(c.stack for c in calls if c.stack not in followed and bool(c.gradient.any()))
    if not others:
        return ()
    where = "', '".join(ends)
    return (
        f"For {whole.loaded.class_name}, {', '.join(names)} start in '{where}': {', '.join(others)} affect the answer "
        "too, but are not followed.",
    )
