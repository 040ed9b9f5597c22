"""Cases with a known cause for the GPT-2 of microbial communities: a rule is planted by some steps of fine-tuning.

The model has no tokenizer and comes without data, and its own sequences have no single cause: of 831 that it drew, only
7 have exactly one token whose exchange changes the most likely next token. It does no induction either (A B ... A does
not make B more likely). So a copy is taught a rule on sequences that the model itself drew:

    BOS  x x P x x x R x x  ?p  ->  answer of P
    BOS  x x P x x x R x x  ?r  ->  answer of R

P is one of KINDS planted tokens and R one of KINDS others, each at a random place, and the last token asks for one of
the two. So the token that was not asked for is a distractor of equal looks. All parameters are trained, on the answer
and, so that the model keeps predicting its sequences, on every token before it. Planted tokens, answers and questions
are drawn by a seed from the vocabulary. One minute and a half of one core.

A case is kept if the answer is the most likely token, an exchange of the planted token for another one of its kind
changes the answer to the other's, and none of EXCHANGES exchanges at any other place but the last changes it. Half of
these are the most likely tokens there, half are drawn at random; none is a token of the rule, because a second planted
token would be a cause of its own. At the place of the planted token, at least half of them must change the answer:
without any planted token the model has a default answer, and a planted token that only repeats it decides nothing.
Cases of one planted token are in one half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.hf.loading.load import Loaded, load
from bench.minimal_pairs.pairs import half_of
from tools.fetch_models import path as weights

KINDS, EACH = 8, 5  # planted tokens of each of the two questions, and cases of each planted token
LENGTHS = (6, 10, 14)  # tokens between BOS and the question
STEPS, ROWS, RATE, WARM_UP, POOL = 240, 16, 1e-3, 20, 512
EXCHANGES = 12
SEED = 0
Ids = Int[Tensor, " token"]


@dataclass(frozen=True)
class Rule:
    """Planted tokens and their answers, each [question, kind], and the two tokens that ask."""

    planted: Int[Tensor, "2 kind"]
    answers: Int[Tensor, "2 kind"]
    questions: Int[Tensor, " 2"]

    @property
    def tokens(self) -> Int[Tensor, " token"]:
        return torch.cat([self.planted.flatten(), self.answers.flatten(), self.questions])


def rule_of(model: Any) -> Rule:
    """Draw the tokens of the rule from the vocabulary, without special tokens."""
    special = model.config.eos_token_id + 1
    drawn = special + torch.randperm(model.config.vocab_size - special, generator=torch.Generator().manual_seed(SEED))
    several = 2 * KINDS
    return Rule(drawn[:several].view(2, KINDS), drawn[several : 2 * several].view(2, KINDS), drawn[2 * several :][:2])


@torch.no_grad()
def backgrounds(model: Any, rule: Rule, rows: int, tokens: int, generator: torch.Generator) -> Int[Tensor, "row token"]:
    """Return BOS and sequences that the model draws, without special tokens and tokens of the rule."""
    ids, cache = torch.full((rows, 1), model.config.bos_token_id), None
    for _ in range(tokens):
        found = model(ids[:, -1:], past_key_values=cache, use_cache=True)
        cache = found.past_key_values
        chances = found.logits[:, -1].softmax(-1)
        chances[:, : model.config.eos_token_id + 1] = 0
        chances[:, rule.tokens] = 0
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
    return ids


def with_rule(
    rule: Rule,
    ids: Int[Tensor, "row token"],
    asked: Int[Tensor, " row"],
    kinds: Int[Tensor, "row 2"],
    draw: torch.Generator,
) -> tuple[Int[Tensor, "row longer"], Int[Tensor, " row"], Int[Tensor, " row"]]:
    """Plant a token of either kind in every row and append the question. Return rows, places of the cause, answers."""
    every = torch.arange(len(ids))
    places = 1 + torch.rand(len(ids), ids.shape[1] - 1, generator=draw).argsort(1)[:, :2]
    made = ids.clone()
    for question in (0, 1):
        made[every, places[:, question]] = rule.planted[question, kinds[:, question]]
    made = torch.cat([made, rule.questions[asked][:, None]], 1)
    return made, places[every, asked], rule.answers[asked, kinds[every, asked]]


def taught() -> tuple[Loaded, Rule, Int[Tensor, "row token"]]:
    """Return the model with the rule, the rule, and sequences drawn before training that it was not trained on."""
    loaded = load(str(weights("microformer")), dtype="float32", allow_pickle=True)
    model: Any = loaded.model
    model.eval()  # no dropout: a run can be repeated
    rule, draw = rule_of(model), torch.Generator().manual_seed(SEED)
    pool, fresh = backgrounds(model, rule, 2 * POOL, max(LENGTHS), draw).split(POOL)
    model.requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS)
    )
    with torch.enable_grad():
        for step in range(STEPS):
            rows = pool[torch.randint(POOL, (ROWS,), generator=draw)][:, : LENGTHS[step % len(LENGTHS)] + 1]
            asked, kinds = (torch.randint(most, (ROWS, 2), generator=draw) for most in (2, KINDS))
            ids, _, answers = with_rule(rule, rows, asked[:, 0], kinds, draw)
            following = torch.cat([ids[:, 1:], answers[:, None]], 1)
            each = nn.functional.cross_entropy(model(ids).logits.transpose(1, 2), following, reduction="none")
            optimiser.zero_grad()
            (each[:, :-1].mean() + each[:, -1].mean()).backward()
            optimiser.step()
            schedule.step()
    model.requires_grad_(False)
    return loaded, rule, fresh


def cases() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the cases in which only the planted token decides, and why others are left out."""
    loaded, rule, fresh = taught()
    draw = torch.Generator().manual_seed(SEED + 1)
    usable, left_out = [], {}
    for number in range(2 * KINDS * EACH):
        question, kind = divmod(number // EACH, KINDS)
        kinds = torch.randint(KINDS, (1, 2), generator=draw)
        kinds[0, question] = kind
        background = fresh[number : number + 1, : LENGTHS[number % len(LENGTHS)] + 1]
        ids, place, answer = with_rule(rule, background, torch.tensor([question]), kinds, draw)
        exchanged = ids.clone()
        exchanged[0, place] = rule.planted[question, (kind + 1) % KINDS]
        frame = f"microbes-{number // EACH + 1:02d}"
        other = int(rule.answers[question, (kind + 1) % KINDS])
        found = _checked(loaded.model, rule, torch.cat([ids, exchanged]), int(place), (int(answer), other), draw)
        name = f"{frame}{'abcde'[number % EACH]}"
        if isinstance(found, str):
            left_out[name] = found
        else:
            usable.append({"id": name, "kind": "microbes", **found, "half": half_of(frame)})
    return usable, left_out


@torch.no_grad()
def _checked(
    model: Any,
    rule: Rule,
    both: Int[Tensor, "2 token"],
    place: int,
    answers: tuple[int, int],
    draw: torch.Generator,
) -> dict[str, Any] | str:
    """Return the numbers of a case in which only the planted token decides, or why it is not usable."""
    ids, exchanged = both
    logits = model(input_ids=both).logits
    if logits[:, -1].argmax(-1).tolist() != list(answers):
        return "the model does not follow the rule"
    forbidden = torch.cat([torch.arange(model.config.eos_token_id + 1), rule.tokens])
    flipping = 0.0
    for at in range(1, len(ids) - 1):
        rows = _exchanges(ids, at, logits[0, at - 1].index_fill(0, forbidden, -torch.inf), draw)
        changed = model(input_ids=rows, logits_to_keep=1).logits[:, -1].argmax(-1) != answers[0]
        if at == place:
            flipping = float(changed.float().mean())
        elif bool(changed.any()):
            return f"an exchange of token {at} changes the answer too"
    if flipping < 1 / 2:
        return "most exchanges of the planted token leave the answer"
    log_odds = logits[:, -1, answers[0]] - logits[:, -1, answers[1]]
    return {
        "tokens": len(ids),
        "input_ids": ids.tolist(),
        "exchanged_ids": exchanged.tolist(),
        "cause_tokens": [place],
        "answer_token": answers[0],
        "other_answer_token": answers[1],
        "probability": round(float(logits[0, -1].softmax(-1)[answers[0]]), 5),
        "log_odds": round(float(log_odds[0]), 3),
        "log_odds_exchanged": round(float(log_odds[1]), 3),
        "flipping_share": round(flipping, 3),
    }


def _exchanges(
    ids: Ids, place: int, logits: Float[Tensor, " token"], draw: torch.Generator
) -> Int[Tensor, "row token"]:
    """Return the sequence with other tokens at one place: likely ones by these logits, and random ones above -inf."""
    allowed = logits.isfinite()
    allowed[ids[place]] = False
    likely = logits.masked_fill(~allowed, -torch.inf).topk(EXCHANGES // 2).indices
    anything = torch.multinomial(allowed.float(), EXCHANGES - len(likely), generator=draw)
    rows = ids.repeat(EXCHANGES, 1)
    rows[:, place] = torch.cat([likely, anything])
    return rows
