"""`python -m bench.atoms`: how often does an explanation point at the right atom, compared with chance?

RXNMapper's ALBERT was trained to restore masked tokens of chemical reactions, and to predict an atom of the product it
has to find the atom of the reactants that it comes from (its authors read the map from one head, arXiv:2012.06051).
Here the truth is known without the model: two fragments are coupled, so that every token of the product corresponds to
one token of the reactants; no symmetry of a fragment exchanges two of its atoms.

    {tail}C(=O)Cl.N{amine}>>{tail}C(=O)N{amine}

Each atom of the product is masked in turn, and the logit of the true token is explained. A method is right if it scores
the atom that the masked atom comes from highest among all atoms of the reactants. Chance is one in the number of atoms
of the reactants; `same element` is one in the number of atoms of the same element. The attention of the authors' head
(head 5 of blocks 9 to 11, on the same masked text) is shown for comparison. Intervals are by bootstrap over reactions.
Writes bench/atoms.json.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import attnscope
from attnscope.hf.loading.load import Loaded, load
from attnscope.stats.intervals import bootstrap_mean
from tools.fetch_models import path as weights

RESULTS = Path(__file__).with_name("atoms.json")
SYMBOL = r"\[[^\]]+]|Br|Cl|N|O|S|P|F|I|C|b|c|n|o|s|p|\(|\)|\.|=|#|-|>>|[0-9]"
ATOM = re.compile(r"^(\[.*]|Br|Cl|[NOSPFICbcnosp])$")
TAILS = ("CCC", "Cc1cccc(F)c1", "COc1ccccc1", "FCCCC", "O=C1CCCN1C", "Brc1cccs1", "CCOC(=O)C", "Cn1cccc1")
AMINES = ("CCCO", "Cc1cccc(Br)c1", "c1cccc(C)c1", "CC(C)OC", "C1CCCOC1", "CCSC", "Cc1ccco1", "CCC#N")
HEAD, LAYERS = 5, (9, 10, 11)
METHODS = "relevance,attention_lrp,gradient_input,raw_attention,rollout,occlusion,random"


@dataclass(frozen=True)
class Reaction:
    """`source` maps a position in the product to the position in the reactants that it comes from."""

    tokens: tuple[str, ...]
    source: dict[int, int]

    @property
    def reactant_atoms(self) -> list[int]:
        arrow = self.tokens.index(">>")
        return [place for place, token in enumerate(self.tokens[:arrow]) if ATOM.match(token)]


def coupled(tail: str, amine: str) -> Reaction:
    """Couple two fragments. The product has their tokens in order, without Cl and the dot."""
    kept, given = (re.findall(SYMBOL, text) for text in (f"{tail}C(=O)", f"N{amine}"))
    reactants = [*kept, "Cl", ".", *given]
    begin = len(reactants) + 1
    comes_from = [*range(len(kept)), *range(len(kept) + 2, len(reactants))]
    product = [*kept, *given]
    source = {begin + n: place for n, place in enumerate(comes_from) if ATOM.match(product[n])}
    return Reaction((*reactants, ">>", *product), source)


def by_their_head(loaded: Loaded, ids: torch.Tensor) -> torch.Tensor:
    """Return the map that the authors use: the attention of one head, averaged over three blocks, [token, token]."""
    model: Any = loaded.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            maps = model(input_ids=ids, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    return torch.stack([maps[layer][0, HEAD] for layer in LAYERS]).mean(0)


def right(loaded: Loaded, reaction: Reaction, methods: str) -> dict[str, list[bool]]:
    """Return for every method and each atom of the product whether the method finds the right atom."""
    tokenizer: Any = loaded.tokenizer
    ids = torch.tensor([tokenizer("".join(reaction.tokens))["input_ids"]])
    assert ids.shape[1] == len(reaction.tokens) + 2, "one symbol is one token, between [CLS] and [SEP]"
    atoms = reaction.reactant_atoms
    found: dict[str, list[bool]] = defaultdict(list)
    for position, source in reaction.source.items():
        masked = ids.clone()
        masked[0, position + 1] = tokenizer.mask_token_id
        told = attnscope.explain(
            loaded, {"input_ids": masked}, target=int(ids[0, position + 1]), methods=methods, seed=position
        )
        with torch.no_grad():
            said = int(loaded.model(input_ids=masked).logits[0, position + 1].argmax())
        found["(the model restores the atom)"].append(said == int(ids[0, position + 1]))
        for name in told.names:
            scores = told.scores(name)
            found[name].append(max(atoms, key=lambda atom: scores[atom + 1]) == source)
        row = by_their_head(loaded, masked)[position + 1]
        found["(the authors' head)"].append(max(atoms, key=lambda atom: float(row[atom + 1])) == source)
    return dict(found)


def summary(
    reactions: int, values: dict[str, list[bool]], groups: list[int], chance: list[float], same: list[float]
) -> dict[str, Any]:
    rows = [
        {"method": name, "right": mean, "low": low, "high": high}
        for name, hits in values.items()
        for mean, low, high in [bootstrap_mean([float(hit) for hit in hits], groups=groups)]
    ]
    return {
        "model": "RXNMapper's ALBERT",
        "reactions": reactions,
        "atoms": len(groups),
        "chance": sum(chance) / len(chance),
        "same_element": sum(same) / len(same),
        "rows": sorted(rows, key=lambda row: -float(row["right"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reactions", type=int, default=len(TAILS))
    parser.add_argument("--method", default=METHODS, help="`default,slow,random` takes four times as long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load(weights("rxnmapper"), allow_pickle=True)
    values: dict[str, list[bool]] = defaultdict(list)
    groups: list[int] = []
    chance, same = [], []
    for number, (tail, amine) in enumerate(list(zip(TAILS, AMINES, strict=True))[: options.reactions]):
        reaction = coupled(tail, amine)
        for name, hits in right(loaded, reaction, options.method).items():
            values[name] += hits
        atoms = reaction.reactant_atoms
        for position in reaction.source:
            alike = sum(reaction.tokens[atom] == reaction.tokens[position] for atom in atoms)
            groups.append(number)
            chance.append(1 / len(atoms))
            same.append(1 / alike)
        print("".join(reaction.tokens), flush=True)
        results = summary(number + 1, values, groups, chance, same)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")  # keep finished results
    table = Table(title=f"the right atom first ({results['atoms']} atoms of {results['reactions']} reactions)")
    for heading in ("method", "right", "95%"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in results["rows"]:
        table.add_row(row["method"], f"{row['right']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}")
    console = Console(width=100)
    console.print(table)
    console.print(f"chance {results['chance']:.2f}; knowing the element alone {results['same_element']:.2f}")


if __name__ == "__main__":
    main()
