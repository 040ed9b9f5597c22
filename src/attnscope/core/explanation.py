"""An explanation says how much every token of the input did for one number a model gave: a function with a card.

    @explanation(title="Gradient x input", summary=..., citation="arXiv:1605.01713", formula=..., signed=True,
                 cost="one backward pass")
    def gradient_input(embedding: Tokens, embedding_gradient: Tokens) -> Scores:

Its parameter names say what it reads of a run, as those of a measure do:

    calls               every attention call in the order in which they happened: queries, keys, values, the rule that
                        makes logits of them, and the gradient of the number at its output (`matrix.attention_call`)
    start               by stack, from which tokens the number is read: weights that add up to 1
    embedding           by stack, the vectors of the tokens, `[token, width]`
    embedding_gradient  the gradient of the number at them
    baseline            by stack, the vectors of an input without content
    ask                 `ask(embedding)` returns the number for other vectors, `[batch, token, width]` to `[batch]`
    gradient_under      `gradient_under(context)` runs model and gradient again inside a context, and returns the
                        gradient at the embedding
    zeroed              `zeroed(stack)` returns for every block how far the state of each token moves when the value of
                        another token is zero, `[block, token, token]`
    contributions       `contributions()` returns what each token sends through the frozen network, `[token, width]`
    made_of             `made_of()` returns what each token puts, through all blocks of the frozen network, into the
                        states from which the number is read, along these states, `[token, width]`
    seed                for random draws

It returns numbers by stack, one for each token. A stack that an explanation cannot explain is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnscope.core.card import leaf_decorator

Group = Literal["default", "slow", "floor"]
"""`default`: computed unless others are named; `slow`: one run of the model per token; `floor`: a trivial baseline."""

LONGEST_CONTINUATION = 256  # tokens of a continuation that are explained: each needs a pass of its own
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
    adds_up: str | None = None  # the sum over all tokens, in words; None: nothing in particular
    group: Group = "default"
    stacks: Literal["all", "one"] = "all"  # "one": only for models with a single stack of tokens

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


def _register(card: ExplanationCard, function: Callable[..., Any]) -> Method:
    reads = tuple(inspect.signature(function).parameters)
    for name in reads:
        if name not in READABLE:
            raise TypeError(f"explanation {card.name} asks for {name}, and a run has {', '.join(READABLE)}")
    return Method(card, function, reads)


explanation = leaf_decorator(ExplanationCard, _register)
