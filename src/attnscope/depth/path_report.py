"""What `paths` found, as plain data: one row per length of path, values of heads, the largest single paths.

    report.lengths[2].value            what all paths through exactly two heads add to the target
    report.lengths[2].up_to.predicted  what the model says when only lengths 0, 1 and 2 count
    report.head_values[12][5]          Shapley value of head 5 of layer 12
    report.save("paths.json"); PathReport.load("paths.json")

Nothing here needs torch. A number that does not exist (a loss without next tokens) is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

from attnscope.charts.numerals import numeral
from attnscope.core.errors import RefusalError
from attnscope.core.visible import parsed
from attnscope.survey.file import write_atomically
from attnscope.survey.provenance import plain

FORMAT = "attnscope-paths"
VERSION = 1


@dataclass(frozen=True)
class Prediction:
    """What the model says when some paths only count, norms frozen where they were."""

    value: float  # of the target
    predicted: str | None  # token at the position, or class; None where the output is neither
    probability: float | None  # of what is predicted
    target_probability: float | None
    loss: float | None  # mean next-token loss over the text, in nats; language models that read one way
    distance: float  # from the model's own output at the position, relative to it


@dataclass(frozen=True)
class LengthRow:
    """All paths with `length` attention edges."""

    length: int
    stream: float  # from the input
    constants: float  # from biases and shifts of norms
    paths: int  # how many begin at the input
    residual: float | None  # relative residual of their sum; None for a single token
    residual_share: float | None  # of what tells tokens apart in the last stream
    energy: float | None  # sum of squares of what the single paths from the input contribute
    energy_error: float | None  # its standard error
    up_to: Prediction  # lengths up to this one
    without: Prediction  # all lengths but this one

    @property
    def value(self) -> float:
        return self.stream + self.constants

    @property
    def mean(self) -> float:
        """What the mean path of this length adds (`pathways.mean_path`, as the target sees it)."""
        return self.stream / self.paths if self.paths else 0.0


@dataclass(frozen=True)
class Chain:
    """One path from the input: its heads from first to last, and the token at which most of it begins."""

    contribution: float
    heads: tuple[tuple[int, int], ...]  # (layer, head)
    position: int
    token: str
    of_token: float  # what begins at that token


@dataclass(frozen=True)
class Players:
    """Shapley values when MLPs are players beside heads; they add up to `everything - nothing`."""

    heads: tuple[tuple[float, ...], ...]
    mlps: tuple[tuple[float, ...], ...]
    nothing: float
    everything: float


@dataclass(frozen=True, repr=False)
class PathReport:
    """The decomposition of one target on one text."""

    model: str
    class_name: str
    stack: str
    text: str
    tokens: tuple[str, ...]
    target: str  # in words
    output: str  # "tokens", "classes" or "states"
    position: int | None
    dtype: str
    value: float  # the target, from the model's own output
    total: float  # the sum over all lengths and sources
    linear_difference: float  # largest of any block's linear form from the block, relative
    lengths: tuple[LengthRow, ...]
    whole_residual: float | None
    head_lengths: tuple[tuple[tuple[float, ...], ...], ...]  # layer, head, length
    head_values: tuple[tuple[float, ...], ...]
    edges: tuple[float, ...] | None  # value by number of edges of both kinds, attention and MLP
    players: Players | None
    top: tuple[Chain, ...]
    top_exact: bool  # no larger path than those of `top` exists
    top_missed: float  # no path outside `top` is larger than this; an estimate unless `top_exact`
    draws: int  # behind the energies
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def difference(self) -> float:
        """How far the sum over lengths is from the model's own number."""
        return abs(self.total - self.value)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = plain({"format": FORMAT, "version": VERSION, **asdict(self)})
        for row, own in zip(document["lengths"], self.lengths, strict=True):
            row |= {"value": own.value, "mean": own.mean}
        return {**document, "difference": self.difference}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PathReport:
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise RefusalError("This is no paths file of this version: run `attnscope paths` again.")
        named = {f.name: _tuples(data[f.name]) for f in fields(cls) if f.name not in ("provenance", "notes")}
        named["lengths"] = tuple(
            LengthRow(
                **{
                    **{f.name: row[f.name] for f in fields(LengthRow)},
                    "up_to": Prediction(**row["up_to"]),
                    "without": Prediction(**row["without"]),
                }
            )
            for row in data["lengths"]
        )
        named["top"] = tuple(Chain(**{k: _tuples(v) for k, v in chain.items()}) for chain in data["top"])
        players = data["players"]
        named["players"] = None if players is None else Players(**{k: _tuples(v) for k, v in players.items()})
        return cls(**named, notes=tuple(data["notes"]), provenance=dict(data["provenance"]))

    def save(self, path: Path | str) -> Path:
        """One JSON document, written whole or not at all."""
        path = Path(path)
        write_atomically(path, json.dumps(self.to_json(), indent=1, allow_nan=False).encode())
        return path

    @classmethod
    def load(cls, path: Path | str) -> PathReport:
        path = Path(path)
        try:
            return cls.from_json(parsed(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RefusalError(f"There is no file {path}: give the one that `attnscope paths` wrote.") from None
        except (AttributeError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
            raise RefusalError(f"{path} is no paths file ({error}): run `attnscope paths` again.") from error

    def sentences(self) -> tuple[str, ...]:
        """What the numbers say, in plain words."""
        from attnscope.pages.path_words import sentences

        return sentences(self.to_json())

    def chart(self) -> Any:
        """Share by length, reconstruction, values of heads, and heads by length, in one picture."""
        from attnscope.charts.path_panels import path_panels

        return path_panels(self.to_json())

    def write_page(self, path: Path | str) -> Path:
        """The self-contained HTML page."""
        from attnscope.pages.path_page import write_path_page

        return write_path_page(self.to_json(), path)

    def __repr__(self) -> str:
        return f"<PathReport of {self.model}: {self.target} = {numeral(self.value)}, {len(self.lengths)} lengths>"

    def _repr_html_(self) -> str:
        from attnscope.pages.path_words import length_lines

        data = self.to_json()
        words = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences())
        head, *rows = length_lines(data)
        table = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        title = f"<p><b>{escape(self.model)}</b>: {escape(self.target)} = {escape(numeral(self.value))}</p>"
        return f"<div>{title}{words}<table><tr>{top}</tr>{table}</table></div>"


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
