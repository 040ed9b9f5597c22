"""The page of a capacity: the answer, its curves, what each construction needs what is proved; one file."""

from __future__ import annotations

from attnscope import __version__
from attnscope.core.numerals import numeral
from attnscope.records.capacity import Capacity
from attnscope.reporting.capacity.chart import chart
from attnscope.reporting.capacity.words import accuracy_words, curve_tables, need_lines, seed_words, sentences
from attnscope.reporting.document import environment, flat, page_style, policy
from attnscope.reporting.survey.figures import drawing


def render(found: Capacity) -> str:
    """The page as text; a capacity without curves, or with nothing measured along them, has no chart."""
    templates = environment()
    style = page_style(templates)
    drawn = any(need.d is not None for need in (*found.against_n, *found.against_k))
    told = sentences(found)
    return templates.get_template("capacity.html").render(
        policy=policy(style),
        style=style,
        version=__version__,
        data=found,
        accuracy=accuracy_words(found),
        sentences=told,
        summary=f"Width against the number of tokens and against the keys of a row. {told[0]}",
        svg=drawing(chart(found, title=False), "capacity") if drawn else "",
        seeds=seed_words(found),
        needs=need_lines(found),
        bounds=sorted(found.bounds.bounds, key=lambda bound: -bound.width),
        logit_floor=numeral(found.bounds.logit_floor),
        curves=curve_tables(found),
        provenance=flat(
            {
                "patterns": found.pattern.replace("_", " "),
                "seeds": found.seeds,
                "seconds": found.seconds,
                "interrupted": found.interrupted,
                "attnscope": found.attnscope,
            }
        ),
    )
