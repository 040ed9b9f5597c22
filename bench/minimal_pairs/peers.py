"""`python -m bench.minimal_pairs.peers`: how often each explanation names the decisive word first.

Every method scores the tokens of the text for the answer's logit (or what the library explains by default). It is right
if its highest score lies on a token of the cause. Two shares are counted, with Wilson's 95% interval:

    as is       all tokens may be named, also the last one, which asks, and the first one, which often is a sink
    inner       the first and the last token are left out, and so are pairs whose cause is one of them

Other libraries (`make peers` unpacks captum):

    captum IG            captum 0.9.0, IntegratedGradients of the logit, its defaults (50 steps, baseline zero), summed
    captum input x grad  captum 0.9.0, InputXGradient of the logit, summed
    inseq saliency       inseq's default method for a causal model: the gradient of the probability, L2 norm
    inseq IG             inseq's integrated gradients: of the probability, baseline the unknown token, L2 norm
    deletion             the loss of the answer's log probability when the token is deleted
    rollout by hand      (A + I) / 2 of every block, averaged over heads, multiplied (arXiv:2005.00928)

inseq 0.7.1 is not installed: it asks for packages that the project does not have (matplotlib, treescope, typeguard 2).
Its two methods wrap captum's; here captum is called with inseq's definition, without the BOS that inseq would add.

Pairs are read in an order that alternates between kinds. Every pair is written as soon as it is scored, and a second
run goes on where the first was stopped. A pair costs about 40 seconds of one core, of which IG takes 25: `--methods`,
`--most` and `--minutes` choose.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.table import Table
from torch import Tensor

import attnscope
from attnscope.core.registry import chosen_methods
from attnscope.hf.loading.load import Loaded, load
from bench.explain import captum_gradients
from bench.minimal_pairs.pairs import HERE
from tools.fetch_models import path as weights

USABLE, RESULTS = HERE / "usable_smollm2.json", HERE / "peers_smollm2.json"
Ids = Int[Tensor, "1 token"]
Scores = Float[Tensor, " token"]
OURS = "attnscope "
WILSON = 1.959964  # 95%
captum = cache(captum_gradients)  # imported at its first use
AT_ONCE = 25  # points on the line that go through the model together


def probability(model: Any, token: int) -> Callable[[Tensor], Tensor]:
    return lambda given: model(inputs_embeds=given).logits[:, -1].softmax(-1)[:, token]


def logit(model: Any, token: int) -> Callable[[Tensor], Tensor]:
    return lambda given: model(inputs_embeds=given).logits[:, -1, token]


def captum_ig(loaded: Loaded, ids: Ids, token: int) -> Scores:
    model: Any = loaded.model
    vectors = model.get_input_embeddings()(ids).detach()
    ig = captum()(logit(model, token))
    found: Tensor = ig.attribute(vectors, internal_batch_size=AT_ONCE)
    return found[0].sum(-1)


def captum_input_gradient(loaded: Loaded, ids: Ids, token: int) -> Scores:
    captum()
    from captum.attr import InputXGradient

    model: Any = loaded.model
    vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
    found: Tensor = InputXGradient(logit(model, token)).attribute(vectors)
    return found[0].sum(-1).detach()


def inseq_saliency(loaded: Loaded, ids: Ids, token: int) -> Scores:
    captum()
    from captum.attr import Saliency

    model: Any = loaded.model
    vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
    found: Tensor = Saliency(probability(model, token)).attribute(vectors)
    return found[0].norm(dim=-1)


def inseq_ig(loaded: Loaded, ids: Ids, token: int) -> Scores:
    model: Any = loaded.model
    tokenizer: Any = loaded.tokenizer
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.pad_token_id
    embed = model.get_input_embeddings()
    vectors, nothing = embed(ids).detach(), embed(torch.full_like(ids, unknown)).detach()
    ig = captum()(probability(model, token))
    found: Tensor = ig.attribute(vectors, nothing, internal_batch_size=AT_ONCE)
    return found[0].norm(dim=-1)


@torch.no_grad()
def deletion(loaded: Loaded, ids: Ids, token: int) -> Scores:
    model: Any = loaded.model
    places = torch.arange(ids.shape[1])
    without = torch.stack([ids[0, places != place] for place in places])
    answers = model(input_ids=without).logits[:, -1].log_softmax(-1)[:, token]
    found: Tensor = model(input_ids=ids).logits[0, -1].log_softmax(-1)[token] - answers
    return found


@torch.no_grad()
def rollout_by_hand(loaded: Loaded, ids: Ids, token: int) -> Scores:
    model: Any = loaded.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        maps = model(input_ids=ids, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    skip = torch.eye(ids.shape[1])
    carried = skip
    for pattern in maps:
        carried = (pattern[0].mean(0) + skip) / 2 @ carried
    return carried[-1]


PEERS: dict[str, Callable[[Loaded, Ids, int], Scores]] = {
    "captum IG": captum_ig,
    "captum input x grad": captum_input_gradient,
    "inseq saliency": inseq_saliency,
    "inseq IG": inseq_ig,
    "deletion": deletion,
    "rollout by hand": rollout_by_hand,
}


def method_names() -> list[str]:
    """Return attnscope's methods, then the peers."""
    return [OURS + method.card.name for method in chosen_methods(["default", "slow"])] + list(PEERS)


def scores_by(names: list[str], loaded: Loaded, ids: Ids, token: int) -> dict[str, Scores]:
    """Return the scores of several methods. Those of attnscope share one run."""
    ours = [name.removeprefix(OURS) for name in names if name.startswith(OURS)]
    found = {name: PEERS[name](loaded, ids, token) for name in names if name in PEERS}
    if ours:
        explained = attnscope.explain(loaded, {"input_ids": ids}, target=token, methods=ours)
        found |= {OURS + name: torch.tensor(explained.scores(name)) for name in ours}
    return found


def alternating(usable: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return pairs in the order of a hash, one of every kind in turn, so that any beginning is a fair sample."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(usable, key=lambda row: hashlib.sha256(row["id"].encode()).digest()):
        by_kind[row["kind"]].append(row)
    return [row for rank in zip_longest(*by_kind.values()) for row in rank if row is not None]


def judged(scores: Scores, cause: list[int]) -> dict[str, Any]:
    """Return the place that is named first with and without the ends, and the rank of the cause's best token."""
    best = max(float(scores[place]) for place in cause)
    inner = scores[1:-1]
    return {
        "first": int(scores.argmax()),
        "first_inner": int(inner.argmax()) + 1 if len(inner) else None,
        "rank": 1 + int((scores > best).sum()),
    }


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the ends of Wilson's interval of a share."""
    share, z2 = hits / count, WILSON**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = WILSON / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=None, help="comma-separated names; default: all")
    parser.add_argument("--most", type=int, default=None, help="pairs to score; default: all")
    parser.add_argument("--minutes", type=float, default=None, help="stop after this time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    usable = json.loads(USABLE.read_text())["usable"]
    texts = {row["id"]: row for row in map(json.loads, (HERE / "pairs.jsonl").read_text().splitlines())}
    known = {row["id"] for row in usable}
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found: dict[str, dict[str, Any]] = {m: {i: r for i, r in rows.items() if i in known} for m, rows in kept.items()}
    wanted = options.methods.split(",") if options.methods else method_names()
    todo = alternating(usable)[: options.most]
    if any(row["id"] not in found.get(name, {}) for row in todo for name in wanted):
        loaded = load(str(weights("smollm2")), dtype="float32")
        loaded.model.requires_grad_(False)
        begun = time.monotonic()
        for row in todo:
            if options.minutes is not None and time.monotonic() - begun > 60 * options.minutes:
                break
            assert loaded.tokenizer is not None
            ids = torch.tensor([loaded.tokenizer(texts[row["id"]]["text"])["input_ids"]])
            missing = [name for name in wanted if row["id"] not in found.get(name, {})]
            for name, scores in scores_by(missing, loaded, ids, row["answer_token"]).items():
                found.setdefault(name, {})[row["id"]] = judged(scores, row["cause_tokens"])
            written = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in found.items()]
            RESULTS.write_text("{" + ",\n".join(written) + "}\n")
    _print(usable, {name: found[name] for name in method_names() if found.get(name)})


def _print(usable: list[dict[str, Any]], found: dict[str, dict[str, Any]]) -> None:
    """Print a row for each method, and one for a token drawn at random."""
    by_id = {row["id"]: row for row in usable}
    table = Table(title="share of minimal pairs whose decisive word is named first, SmolLM2-135M")
    for heading in ("method", "pairs", "as is", "95%", "inner pairs", "inner", "95%", "held out, inner"):
        table.add_column(heading, justify="left" if heading == "method" else "right")

    def inside(row: dict[str, Any]) -> bool:
        return not {0, row["tokens"] - 1} & set(row["cause_tokens"])

    def shown(hits: list[bool]) -> tuple[str, str]:
        if not hits:
            return "-", "-"
        low, high = wilson(sum(hits), len(hits))
        return f"{sum(hits) / len(hits):.0%}", f"{low:.0%} to {high:.0%}"

    for name, rows in found.items():
        as_is = [row["first"] in by_id[key]["cause_tokens"] for key, row in rows.items()]
        inner = {k: row["first_inner"] in by_id[k]["cause_tokens"] for k, row in rows.items() if inside(by_id[k])}
        held = [hit for key, hit in inner.items() if by_id[key]["half"] == "held_out"]
        table.add_row(
            name,
            str(len(as_is)),
            *shown(as_is),
            str(len(inner)),
            *shown(list(inner.values())),
            shown(held)[0],
        )
    chance = [len(row["cause_tokens"]) / row["tokens"] for row in usable]
    inner_chance = [len(row["cause_tokens"]) / (row["tokens"] - 2) for row in usable if inside(row)]
    table.add_row(
        "chance",
        str(len(usable)),
        f"{sum(chance) / len(chance):.0%}",
        "",
        str(len(inner_chance)),
        f"{sum(inner_chance) / len(inner_chance):.0%}",
    )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
