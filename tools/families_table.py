"""Writes docs/families.md: every family the tests run, how its attention is seen, and how well that agrees.

python tools/families_table.py            write the table
python tools/families_table.py --check    exit with 1 where the written table says something else
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "families.md"
COLUMNS = (
    "family",
    "class",
    "route",
    "heads / kv",
    "norm",
    "writes separable",
    "weights found",
    "largest difference",
)

INTRODUCTION = """# Families

Written by `python tools/families_table.py`, which builds a tiny random model of every family in
`tests/hf/families.py`, probes it, and verifies it with and without padding.

- **route**: how attention is seen. `interface`: through the attention registry of transformers; `sdpa`: a
  call of `scaled_dot_product_attention` that no registry knows of; `softmax`: the model writes attention out
  and makes its own maps.
- **norm**: where norms stand in a block, found by arithmetic (`parallel`: attention and MLP write side by
  side).
- **writes separable**: the stream between attention and MLP can be read.
- **weights found**: the projections of queries, keys, values and outputs that were recognised.
- **largest difference**: between A V recomputed in float64 and what the module really passed on, relative to
  its largest entry, over all layers and paddings. The model's output is equal bit for bit in every one of
  these runs.

"""


def rows() -> list[tuple[str, ...]]:
    """One row per family, from a run of each."""
    sys.path.insert(0, str(ROOT / "tests" / "hf"))
    from families import FAMILIES, REFUSED
    from transformers.utils import logging

    from attnscope.core.errors import RefusalError
    from attnscope.hf.anatomy.anatomy import anatomy
    from attnscope.hf.tapping.verify import verify

    logging.set_verbosity_error()
    table = []
    for family in FAMILIES:
        model = family.model()
        found = anatomy(model, family.example())
        results = [verify(model, family.batch(padding), found) for padding in family.paddings]
        failed = [result.sentence for result in results if not result.passed]
        if failed:
            raise SystemExit(failed[0])
        blocks = [block for stack in found.stacks for block in stack.blocks]
        norms = dict.fromkeys(block.writes.norm for block in blocks)
        separable = "yes" if blocks and all(block.writes.separable for block in blocks) else "no"
        table.append(
            (
                family.name,
                f"`{found.model_class}`",
                ", ".join(found.routes),
                ", ".join(dict.fromkeys(f"{s.heads} / {s.kv_heads}" for s in found.sites)),
                ", ".join(norms) or "no blocks",
                separable if blocks else "no blocks",
                ", ".join(dict.fromkeys(str(s.projections) for s in found.sites)),
                f"{max(result.largest for result in results):.0e}",
            )
        )
    for family in REFUSED:
        model = family.model()
        try:
            anatomy(model)
        except RefusalError:
            table.append((family.name, f"`{type(model).__name__}`", "refused", *["-"] * 5))
        else:
            raise SystemExit(f"{family.name} was not refused")
    return table


def page(table: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *table)]
    return INTRODUCTION + "\n".join(lines) + "\n"


def agree(written: str, fresh: str) -> bool:
    """Everything but the last column, a rounding error that depends on the machine, must be the same."""

    def facts(text: str) -> list[str]:
        return [line.rsplit("|", 2)[0] if line.startswith("|") else line for line in text.splitlines()]

    return facts(written) == facts(fresh)


def main() -> int:
    warnings.simplefilter("ignore")
    fresh = page(rows())
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and agree(PAGE.read_text(encoding="utf-8"), fresh) else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(fresh, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
