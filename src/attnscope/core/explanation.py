"""An explanation says how much every token of the input did for one number a model gave: a function with a card.

    @explanation(title="Gradient x input", summary=..., citation="arXiv:1605.01713", formula=..., cost="one backward
    pass") def gradient_input(embedding: Tokens, embedding_gradient: Tokens) -> Scores:

Its parameter names say what it reads of a run, as those of a measure do:

    calls               every attention call in the order in which they happened: queries, keys, values, the rule that
                        makes logits of them, and the gradient of the number at its output (`matrix.attention_call`)
    start               by stack, from which tokens the number is read: weights that add up to 1
    embedding           by stack, the vectors of the tokens, `[token, width]`
    embedding_gradient  the gradient of the number at them
    baseline            by stack, the vectors of an input that says nothing
    ask                 `ask(embedding)` gives the number for other vectors, `[batch, token, width]` to `[batch]`
    gradient_under      `gradient_under(context)` runs model and gradient again inside a context, and gives the gradient
    at
                        the embedding
    zeroed              `zeroed(stack)` gives for every layer how far each token's state moves when the value of another
    is
                        zero, `[layer, token, token]`
    contributions       `contributions()` gives what each token sends through the frozen network, `[token, width]`
    made_of             `made_of()` gives what each token puts, through all blocks of the frozen network, into the
                        states from which the number is read, along these states, `[token, width]`
    seed                for what is drawn

Numbers come back by stack, one for each token. A stack that an explanation cannot speak of is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Group = Literal["default", "slow", "floor"]
"""`default`: computed unless others are named; `slow`: a run of the model for every token; `floor`: knows nothing."""

LONGEST_CONTINUATION = 256
"""Tokens of a continuation that are explained, at most: each is a pass of its own."""

READABLE = (
    *("calls", "start", "embedding", "embedding_gradient", "baseline", "ask", "gradient_under", "zeroed"),
    *("contributions", "made_of", "seed"),
)


@dataclass(frozen=True)
class ExplanationCard:
    """What is known about an explanation before any model is seen."""

    name: str
    title: str
    summary: str
    citation: str
    formula: str
    cost: str  # in words: "one backward pass"
    signed: bool  # whether a token can speak against the answer
    adds_up: str | None  # what the numbers of all tokens add up to, in words; None: to nothing in particular
    group: Group
    stacks: Literal["all", "one"]  # "one": only where a model has a single stack of tokens

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Method:
    """A registered explanation: call it with what `reads` names."""

    card: ExplanationCard
    function: Callable[..., Any]
    reads: tuple[str, ...]

    def __call__(self, **fields: Any) -> Any:
        return self.function(**fields)


def explanation(
    *,
    title: str,
    summary: str,
    citation: str,
    formula: str,
    cost: str,
    signed: bool,
    adds_up: str | None = None,
    group: Group = "default",
    stacks: Literal["all", "one"] = "all",
) -> Callable[[Callable[..., Any]], Method]:
    """Turn a function into an explanation named like the function, which is named like its file."""

    def register(function: Callable[..., Any]) -> Method:
        reads = tuple(inspect.signature(function).parameters)
        unknown = [name for name in reads if name not in READABLE]
        if unknown:
            raise TypeError(
                f"explanation {function.__name__} asks for {unknown[0]}, and a run has {', '.join(READABLE)}"
            )
        card = ExplanationCard(
            name=function.__name__,
            title=title,
            summary=summary,
            citation=citation,
            formula=formula,
            cost=cost,
            signed=signed,
            adds_up=adds_up,
            group=group,
            stacks=stacks,
        )
        return Method(card, function, reads)

    return register
