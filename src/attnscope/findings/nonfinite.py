"""NaN or infinity: the place where it first appears. Nothing after that place can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import count, within

# The order in which a block computes: it reads the stream, attends, and writes.
_ORDER = {"stream": 0, "self": 1, "uneven": 1, "cross": 2, "middle": 3}


@finding(
    order=1,
    reads=(),
    summary="The first place with NaN or infinity.",
    citation="IEEE 754",
    severity="wrong: every number computed from NaN or infinity is lost",
)
def nonfinite(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from _broken_weights(survey)
    for stack in survey.stacks:
        broken = [(k, c) for k, c in survey.cells.items() if k.stack == stack and c.moments.nonfinite.any()]
        if not broken:
            continue
        first = min(broken, key=lambda kc: (kc[0].layer, _ORDER.get(kc[0].site, len(_ORDER))))[0]
        here = [(k, c) for k, c in broken if (k.layer, k.site) == (first.layer, first.site)]
        worst = max(int(c.moments.nonfinite.max()) for _, c in here)
        seen = max(int((c.moments.nonfinite + c.moments.count).max()) for _, c in here)
        heads = tuple((first.layer, h) for h in _heads(here))
        measures = sorted({k.measure for k, _ in here})
        yield Finding(
            kind=nonfinite.name,
            severity="wrong",
            stack=stack,
            layers=(first.layer,),
            heads=heads,
            sentence=(
                f"NaN or infinity first appears in {_place(first)}{within(stack, '', len(survey.stacks) > 1)}:"
                f" in {worst} of {count(seen, 'sequence')} ({', '.join(measures)})."
            ),
            value=float(worst),
            threshold=0.0,
            threshold_name="nonfinite",
            citation=nonfinite.citation,
            advice=(
                "Nothing after this place can be trusted. Check the affected sequences, overflow if the model runs in "
                "float16 (try bfloat16 or float32), and attention rows in which every key is masked."
            ),
            details={"measure": measures[0], "site": first.site, "measures": measures, "places": len(broken)},
        )


def _broken_weights(survey: Survey) -> Iterator[Finding]:
    """Report NaN or infinity in weights. Nothing else reveals a broken embedding row that no text uses."""
    named = (survey.provenance.get("model") or {}).get("broken_weights")
    if not named or not isinstance(named, list):
        return
    yield Finding(
        kind="nonfinite",
        severity="wrong",
        stack=next(iter(survey.stacks), ""),
        layers=(),
        heads=(),
        sentence=f"The weights {', '.join(map(str, named))} hold NaN or infinite numbers.",
        value=float(len(named)),
        threshold=0.0,
        threshold_name="nonfinite",
        citation="IEEE 754",
        advice="Train or convert the model again from a checkpoint in which these weights are finite.",
        details={"weights": list(named)},
    )


def _heads(here: list[tuple[Key, Cell]]) -> list[int]:
    return sorted({h for _, c in here if c.shape for h, n in enumerate(c.moments.nonfinite.tolist()) if n})


def _place(key: Key) -> str:
    return {
        "stream": f"the residual stream entering block {key.layer}",
        "middle": f"the residual stream after the attention write of block {key.layer}",
        "self": f"the attention of block {key.layer}",
        "uneven": f"the attention of block {key.layer}",
        "cross": f"the cross-attention of block {key.layer}",
    }.get(key.site, f"{key.site} of block {key.layer}")
