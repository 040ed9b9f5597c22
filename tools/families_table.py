"""Write docs/families.md: how attention is observed in every tested family, how well it agrees, and every model type.

python tools/families_table.py                 write the first table, and keep the list of every type
python tools/families_table.py --every F       write both, the list from outcomes of tools/every_family.py
python tools/families_table.py --check         exit with 1 if the first table is out of date
"""

from __future__ import annotations

import argparse
import json
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

Two tables: families that the tests look at closely, and below them what becomes of every model type of transformers.
The first is written by `python tools/families_table.py`, which builds a tiny random model of every family in
`tests/hf/families.py`, probes it, and verifies it with and without padding; `make families` writes both.

- **route**: how attention is seen. `interface`: through the attention registry of transformers; `sdpa`: a
  call of `scaled_dot_product_attention` that no registry knows of; `softmax`: the model writes attention out
  and makes its own maps; `pieces`: windows or blocks of keys in several products, read as the one call that they
  are (Longformer, LED, BigBird, LongT5).
- **norm**: where norms stand in a block, found by arithmetic (`parallel`: attention and MLP write side by
  side).
- **writes separable**: the stream between attention and MLP can be read.
- **weights found**: the projections of queries, keys, values and outputs that were recognised.
- **largest difference**: between A V recomputed in float64 and what the module really passed on, relative to
  its largest entry, over all layers and paddings. The model's output is equal bit for bit in every one of
  these runs.

"""


def rows() -> list[tuple[str, ...]]:
    """Run every family, and return one row for each."""
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
        observed = anatomy(model, family.example())
        results = [verify(model, family.batch(padding), observed) for padding in family.paddings]
        failed = [result.sentence for result in results if not result.passed]
        if failed:
            raise SystemExit(failed[0])
        blocks = [block for stack in observed.stacks for block in stack.blocks]
        norms = dict.fromkeys(block.writes.norm for block in blocks)
        separable = "yes" if blocks and all(block.writes.separable for block in blocks) else "no"
        table.append(
            (
                family.name,
                f"`{observed.model_class}`",
                ", ".join(observed.routes),
                ", ".join(dict.fromkeys(f"{s.heads} / {s.kv_heads}" for s in observed.sites)),
                ", ".join(norms) or "no blocks",
                separable if blocks else "no blocks",
                ", ".join(dict.fromkeys(str(s.projections) for s in observed.sites)),
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


def every_type(outcomes: Path | None) -> str:
    """Return the list of every type, from outcomes or unchanged from the page."""
    from transformers import __version__

    from every_family import BYTES, SECONDS
    from every_type_page import HEADING, page
    from explained import ALLOWED

    if outcomes is not None:
        limits = f"{SECONDS} s of processor time and {BYTES >> 30} GB"
        return page(json.loads(outcomes.read_text("utf-8")), __version__, limits, ALLOWED)
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return before[before.index(HEADING) :] if HEADING in before else ""


def page(table: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *table)]
    return INTRODUCTION + "\n".join(lines) + "\n"


def agree(written: str, fresh: str) -> bool:
    """Compare two tables without their last column, a rounding error that depends on the machine."""

    def facts(text: str) -> list[str]:
        return [line.rsplit("|", 2)[0] if line.startswith("|") else line for line in text.splitlines()]

    return facts(written) == facts(fresh)


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=Path)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    fresh = page(rows()) + "\n" + every_type(asked.every)
    if asked.check:
        return 0 if PAGE.exists() and agree(PAGE.read_text(encoding="utf-8"), fresh) else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(fresh, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
