"""`python -m bench.shortlist`: does `paths` find the heads that matter, though it takes out only some of them?

All 270 heads of SmolLM2-135M are taken out, one at a time, on texts on which the shortlist was not tuned: factual
prompts and windows of WikiText-2. A head matters if the probability of the answer changes by more than a tenth without
it. The result is the share of these heads, and of the five largest effects, that `paths` takes out. It is kept in
`bench/shortlist.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch

from attnscope.commands.paths.answering import Answering
from attnscope.commands.paths.effect_record import NOTABLE
from attnscope.commands.paths.reading import aim
from attnscope.commands.paths.reference import reference
from attnscope.commands.paths.run import paths
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.editing.replacing import HeadOutputs
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.intercepting.restoring import looking_at
from attnscope.hf.loading.load import Loaded, load
from attnscope.hf.loading.one_text import reading
from bench.subjects import wikitext
from tools.fetch_models import path as weights

RESULT = Path(__file__).with_suffix(".json")
PROMPTS = (
    "The largest planet in the solar system is",
    "Barack Obama was born in the state of",
    "Berlin is in Germany. Madrid is in",
)
WINDOWS = (32, 32, 64)  # tokens
TOP = 5

Place = tuple[int, int]


def window(loaded: Loaded, tokens: int, rng: random.Random) -> str:
    whole, tokenizer = wikitext(), loaded.tokenizer
    assert tokenizer is not None
    start = whole.index(" ", rng.randrange(len(whole) - 20 * tokens))
    ids = tokenizer(whole[start : start + 12 * tokens])["input_ids"][:tokens]
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def every_change(loaded: Loaded, text: str) -> dict[Place, float]:
    """Return log p without each head minus log p of the whole model, for all heads."""
    with looking_at(loaded.model), torch.no_grad():
        read = reading(loaded, text)
        structure = anatomy(loaded.model, read.batch)
        network = freeze(loaded.model, read.batch, structure)
        answering = Answering.of(network, aim(loaded, network, read, None, None, None))
        sites = prunable(loaded.model, structure)
        heads = HeadOutputs.of(loaded.model, sites, network, lambda stream: [stream.sum()])
        others = reference(loaded, read, heads, "mean", 0)
        own = answering(heads.streams[-1]).log_probability
        every = [(block, head) for block, site in sites.items() for head in range(site.heads)]
        left = answering(heads.replaced([{place: others.of(place)[0]} for place in every])).log_probability
        assert own is not None
        assert left is not None
        return dict(zip(every, (left - own).tolist(), strict=True))


def judged(loaded: Loaded, text: str) -> dict[str, Any]:
    report = paths(loaded, text, dtype="float32", draws=0, mlp=False, top=1)
    assert report.effects is not None
    assert report.effects.probability is not None
    taken = {one.place for one in report.effects.heads}
    changes = every_change(loaded, text)
    matter = {place for place, change in changes.items() if abs(math.expm1(change)) > NOTABLE}
    lower = {place for place in matter if changes[place] < 0}
    largest = sorted(changes, key=lambda place: -abs(changes[place]))[:TOP]
    return {
        "text": text,
        "tokens": len(report.tokens),
        "probability": report.effects.probability,
        "heads": len(changes),
        "taken_out": len(taken),
        "matter": len(matter),
        "matter_found": len(matter & taken),
        "lower": len(lower),
        "lower_found": len(lower & taken),
        "largest_found": len(taken.intersection(largest)),
        "missed": sorted((block, head, round(changes[block, head], 3)) for block, head in matter - taken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load(str(weights("smollm2")), dtype="float32")
    rng = random.Random(options.seed)
    rows = []
    for text in (*PROMPTS, *(window(loaded, tokens, rng) for tokens in WINDOWS)):
        rows.append(judged(loaded, text))
        print({name: value for name, value in rows[-1].items() if name != "missed"}, flush=True)
    of = {name: sum(row[name] for row in rows) for name in rows[0] if isinstance(rows[0][name], int)}
    print(
        f"{of['matter_found']} of {of['matter']} heads that matter, {of['lower_found']} of {of['lower']} that the "
        f"answer needs and {of['largest_found']} of {TOP * len(rows)} of the largest were among {of['taken_out']} of "
        f"{of['heads']} taken out."
    )
    RESULT.write_text(json.dumps({"model": "SmolLM2-135M", "seed": options.seed, "texts": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
