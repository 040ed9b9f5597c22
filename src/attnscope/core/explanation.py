"""An explanation is a function with a card that scores how much each input token contributed to one output number.

    @explanation(title="Gradient x input", summary=..., citation="arXiv:1605.01713", formula=..., signed=True,
                 cost="one backward pass")
    def gradient_input(embedding: Tokens, embedding_gradient: Tokens) -> Scores:

As for a measure, its parameter names say which parts of a run it reads:

    calls               all attention calls in execution order: queries, keys, values, the rule that
                        computes logits from them, and the gradient of the number with respect to the call's
                        output (`matrix.attention_call`)
    start               per stack, the weight with which the number is read from each token; weights add up to 1
    embedding           per stack, the embedding vectors of the tokens, `[token, width]`
    embedding_gradient  per stack, the gradient of the number with respect to these vectors
    baseline            per stack, the embedding vectors of an input without content
    ask                 `ask(embedding)` returns the number for other vectors, `[batch, token, width]` to `[batch]`
    gradient_under      `gradient_under(context)` runs the model and its backward pass again inside a context manager,
                        and returns the gradient with respect to the embedding
    zeroed              `zeroed(stack)` returns, for every block, how far the state of each token moves when the value
                        of another token is set to zero, `[block, token, token]`
    contributions       `contributions()` returns each token's contribution to the number through the frozen network,
                        `[token, width]`
    made_of             `made_of()` returns each token's part in the states from which the number is read, through all
                        blocks of the frozen network and projected onto these states, `[token, width]`
    seed                the seed for random draws

It returns one number per token, in a mapping by stack. A stack that an explanation cannot explain is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnscope.core.card import leaf_decorator

Group = Literal["default", "slow", "floor"]
"""`default`: computed unless others are named; `slow`: one run of the model per token; `floor`: a trivial baseline."""

SumsTo = Literal["difference", "one", "through paths"]
"""`difference`: the answer minus that for a neutral input; `one`: 1; `through paths`: the answer minus constants."""

LONGEST_CONTINUATION = 256  # at most this many tokens of a continuation are explained: each needs its own pass
READABLE = (
    *("calls", "start", "embedding", "embedding_gradient", "baseline", "ask", "gradient_under", "zeroed"),
    *("contributions", "made_of", "seed"),
)


@dataclass(frozen=True)
class ExplanationCard:
    """Description of an explanation, independent of any model."""

    name: str
    title: str
    summary: str
    citation: str
    formula: str
    cost: str  # in words: "one backward pass"
    signed: bool  # whether scores can be negative, for tokens that lower the number
    adds_up: str | None = None  # the sum of all scores, in words; None if it has no meaning
    sums_to: SumsTo | None = None  # the same as a number that a run can compute, so that the sum is checked
    replaces: bool = False  # whether it replaces tokens by neutral ones, as a judge can do too
    group: Group = "default"
    stacks: Literal["all", "one"] = "all"  # "one": only for models with a single stack of tokens
    reads_answer: bool = True  # False if scores do not depend on which answer is explained

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Method:
    """A registered explanation: call it with the fields that `reads` names."""

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
