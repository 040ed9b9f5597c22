"""Every number of every record, set to a value that it can hardly have: refused by name, or listed as possible."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import attnscope
from attnscope.commands.compile.record import Compiled
from attnscope.commands.scan.survey.trial import Exposure, HeadTrial, OddWeight, Part, Rescaled, Trial
from attnscope.core.decoding import FieldError, decode
from attnscope.core.errors import RefusalError
from attnscope.core.ranges import Probability, Size, slack
from attnscope.heads.head_file import read_head
from tests.commands.samples import ALL, sample

Way = tuple[str | int, ...]
NAN = None  # as files write it
NUMBERS = (-1, 1e308, NAN, -99, 2.5)
FEW = 2  # of every field and number
SIGNED, MISSING, ANY = (-1, -99), (NAN,), NUMBERS
A_SURVEY = (
    (r"cards\.\w+\.(low|alarm\.threshold)", SIGNED),  # a card of another version may say so
    (r"cells\.\d+\.peak\.where\.\w+(\.\d+)?", (-1,)),  # a label that one of several shards lacks
    (r"provenance\..*", MISSING),
    (r"provenance\.seed", SIGNED),  # any whole number is a seed
    (r"trial\.(unigram|order|order_rounding)", MISSING),
    (r"trial\.(exposures|weights)\.\d+\.layer", MISSING),  # of no block
    (r"trial\.parts\.\d+\.slope", (*SIGNED, *MISSING)),  # a derivative
    (r"trial\.(parts\.\d+\.head_slopes\.\d+|heads\.\d+\.slope)", SIGNED),
)
ONE_OF_A_SURVEY = tuple((rf"(first|second|surveys\.\w+)\.{pattern}", numbers) for pattern, numbers in A_SURVEY)
THRESHOLDS = (r"thresholds\.\w+", (1e308,))  # a limit that nothing reaches

# Patterns of fields, by kind, and the numbers that are possible there. A number that is MISSING is shown as unknown or
# left out, so it cannot be taken for a fact. A wrong number in the other fields would be shown: only the hash of the
# file guards these, and each line says why no range or sum can.
POSSIBLE: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {
    "survey": A_SURVEY,
    "comparison": (*ONE_OF_A_SURVEY, THRESHOLDS),
    "atlas": (
        (r"entries\.\d+\.(loss|unigram|bits_per_byte)", MISSING),
        (r"entries\.\d+\.(stacks|twin)\.\d+\.grids\..*", (*SIGNED, *MISSING)),  # means of any measure
        (r"settings\..*", ANY),  # settings of another version may have other meanings
        (r"entries\.\d+\.inside", MISSING),  # the atlas has too few models of that kind
    ),
    "placement": ((r"rows\.\d+\.(usual_)?(low|median|high)", (*SIGNED, 2.5)),),  # numbers of any measure
    "collapse": (
        (r"bounds\.\d+\.(cubic|tau_bound|paper|spread|condition_met)", MISSING),  # a bound that does not apply
        (r"ends\.\d+\.bound\.\d+", (*SIGNED, *MISSING, 1e308)),  # a logarithm; its factor is 3^depth
        (r"ends\.\d+\.truth\.\d+", SIGNED),  # a logarithm
        (r"order", (*SIGNED, *MISSING)),  # a slope; the points of its fit are not in the record
        (r"provenance\..*", MISSING),
    ),
    "paths": (
        (r"position|whole_residual", MISSING),
        (r"lengths\.\d+\.(residual|residual_share|energy|energy_error)", MISSING),
        (r"lengths\.\d+\.residual_share", SIGNED),  # terms cancel, so the share of one has no bound
        (r"lengths\.\d+\.(up_to|without)\.(probability|target_probability|loss)", MISSING),
        (r"lengths\.\d+\.(up_to|without)\.value", SIGNED),  # a logit
        (r"head_(lengths|values)\..*", (*SIGNED, *MISSING)),  # parts of a logit, of some paths only
        (r"(edges|players)\..*|top\.\d+\.(contribution|of_token)", SIGNED),  # parts of a logit, of some paths only
        (r"effects\.(value|(edges|sets)\.\d+\.total)", SIGNED),  # logits of changed copies
        (r"effects\.((heads|edges|sets)\.\d+\.)?probability", MISSING),
    ),
    "task_paths": (
        (r"prompts\.\d+\.loss", MISSING),
        (r"prompts\.\d+\.(paths|removal)\b.*", SIGNED),  # differences of logits and of losses
    ),
    "logit_paths": (
        (r"softcap|sources\.\d+\.(block|head)", MISSING),
        (r"terms\..*\b(logit|lead)", SIGNED),  # parts of a logit; only the largest are listed, so no sum is known
    ),
    "faithfulness": (
        (r"methods\.\d+\.(\w*gap)\.low", (-1,)),  # the end of an interval within -1 to 1
        (r"methods\.\d+\.log_gap\.low", SIGNED),  # a difference of logarithms
    ),
    "explanation": (
        (r"position", MISSING),
        (r"value|methods\.\d+\.scores\..*|lengths\..*", SIGNED),  # logits; `passes` shows sums that do not fit
        (r"trial\.agreement\..*", (-1,)),  # a correlation
    ),
    "view": ((r"parts\.\d+\.heads\.\d+\.(entropy|own|previous)|opened\.head", MISSING),),
    "operator_map": ((r"(values|constants|totals)\..*", MISSING),),
    "compiled": (
        (r"seed|tried\.\d+\.seed", SIGNED),
        (r"rounding", MISSING),  # infinite in a coarse precision, and missing in older files
        (r"tried\.\d+\.(ratio_error|leak)", MISSING),  # older files have null for infinite numbers
        (r"notes\..*", ANY),  # each construction has its own
    ),
    "capacity": ((r"(.*\.)?seeds\.\d+", SIGNED), (r".*\.widths\.\d+", MISSING)),
    "head_widths": ((r"heads\.\d+\.widths\.\d+", MISSING),),
    "treatment": (
        *ONE_OF_A_SURVEY,
        THRESHOLDS,
        (r"training\.seed", SIGNED),
        (r"start|arms\.\w+\.(curve\.\d+|seconds)|provenance\..*", MISSING),
        (r"provenance\.seed", SIGNED),
        (r"remedy\.settings\..*", ANY),  # each remedy has its own
    ),
    "reproduction": (
        (r"(params|records)\b.*", ANY),  # each experiment has its own
        (r"figures\..*\.x", ANY),  # a position on any axis
        (r"figures\..*\.(y|low)", (*SIGNED, *MISSING)),  # any quantity
        (r"seeds\.\d+", SIGNED),
    ),
    "timeline": (
        (r"header\.measures\.\w+\.(low|alarm\.threshold)", SIGNED),
        (r"header\.settings\..*", ANY),  # settings of another version may have other meanings
        (r"looks\.\d+\.values\..*", MISSING),
        (r"looks\.\d+\.(loss|alarms\.\d+\.(value|threshold))", (*SIGNED, *MISSING)),  # any loss, of any sign
    ),
}


@cache
def document_and_reader(kind: str) -> tuple[str, Callable[[Any], Any]]:
    """Return the document of a record as text, and the function that reads such documents."""
    record = sample(kind)
    if not isinstance(record, Compiled):
        return json.dumps(record.document()), type(record).from_json
    with TemporaryDirectory() as folder:
        stored = read_head(record.save(Path(folder) / "head.safetensors"))
    return json.dumps(dict(stored.certificate)), lambda document: Compiled._of(replace(stored, certificate=document))


def numbers_in(node: Any, way: Way = ()) -> Iterator[tuple[Way, float | int]]:
    if isinstance(node, int | float) and not isinstance(node, bool) and way != ("version",):
        yield way, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, entry in items:
        yield from numbers_in(entry, (*way, name))


def alterations(document: Any) -> list[tuple[Way, Any]]:
    return [
        (way, number)
        for way, old in numbers_in(document)
        for number in NUMBERS
        if number != old and (number != 2.5 or isinstance(old, int))
    ]


def altered(document: Any, way: Way, number: Any) -> Any:
    """Put a number into a document, and return the one that was there."""
    for step in way[:-1]:
        document = document[step]
    old, document[way[-1]] = document[way[-1]], number
    return old


def possible(kind: str, way: Way, number: Any) -> bool:
    path = ".".join(map(str, way))
    return any(number in numbers and re.fullmatch(pattern, path) for pattern, numbers in POSSIBLE[kind])


def a_few(chosen: list[tuple[Way, Any]], most: int) -> list[tuple[Way, Any]]:
    """Return some of every field and number, drawn at random but always the same."""
    random.Random(0).shuffle(chosen)
    seen: Counter[tuple[Any, ...]] = Counter()
    kept = []
    for way, number in chosen:
        field = (*("" if isinstance(step, int) else step for step in way), number)
        seen[field] += 1
        if seen[field] <= FEW:
            kept.append((way, number))
    return kept[:most]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", sorted({*ALL, "atlas"}))
def test_impossible_numbers_are_refused_by_name(kind: str, every: bool) -> None:
    text, read = document_and_reader(kind)
    document = json.loads(text)
    read(document)
    chosen = alterations(document)
    accepted, refusals = [], []
    for way, number in a_few(chosen, 2000 if every else 400):
        old = altered(document, way, number)
        try:
            read(document)
        except (FieldError, RefusalError) as refusal:
            refusals.append(str(refusal))
        else:
            accepted.append((way, number))
        altered(document, way, old)
    assert [(way, number) for way, number in accepted if not possible(kind, way, number)] == []
    fields = {step for way, _ in numbers_in(document) for step in way if isinstance(step, str)} | {"difference"}
    assert [words for words in refusals if "\n" in words or not fields & set(re.findall(r"\w+", words))] == []


def test_refusal_names_the_field_and_what_is_needed() -> None:
    document = json.loads(json.dumps(sample("paths").document()))
    document["lengths"][1]["up_to"]["probability"] = 1.5
    with pytest.raises(
        FieldError, match=r"lengths\[1\].up_to.probability: a probability from 0 to 1 is needed, not 1.5"
    ):
        type(sample("paths")).from_json(document)


def test_rounding_is_no_reason_to_refuse() -> None:
    assert decode(Probability, 1 + 1e-7) == 1 + 1e-7
    assert decode(Probability, -1e-7) == -1e-7
    assert slack(0.0) < 1e-5
    with pytest.raises(FieldError, match="a finite number of 0 or more is needed, not infinity"):
        decode(Size, "inf")


def test_sums_of_a_survey_that_no_values_have_are_refused() -> None:
    document = json.loads(json.dumps(sample("survey").document()))
    read = type(sample("survey")).from_json
    one = next(cell for cell in document["cells"] if cell["key"][0] == "entropy")
    for name, text in (("total", "-1p1074"), ("total", "fp1080"), ("squares", "0"), ("squares", "fp2190")):
        old = altered(one, ("moments", name, 0), text)
        with pytest.raises(FieldError, match=rf"cells\[\d+\]: moments.{name}"):
            read(document)
        altered(one, ("moments", name, 0), old)
    read(document)


@pytest.mark.parametrize(
    ("kind", "way", "number", "words"),
    [
        (
            "collapse",
            "curves.san.mean.1",
            1e30,
            r"curves\['san'\].mean\[1\]: a relative residual from 0 to 2 is needed",
        ),
        ("collapse", "curves.san.high.1", 2.1, r"curves\['san'\].high\[1\]: a relative residual from 0 to 2 is needed"),
        ("collapse", "bounds.0.tau", 1.5, r"bounds\[0\].tau: a share from 0 to 1 is needed"),
        (
            "collapse",
            "provenance.corpus.sequences",
            10**30,
            r"provenance\['corpus'\]\['sequences'\]: a count is needed",
        ),
    ],
)
def test_numbers_that_only_their_meaning_excludes_are_refused(kind: str, way: str, number: Any, words: str) -> None:
    text, read = document_and_reader(kind)
    document = json.loads(text)
    altered(document, tuple(int(step) if step.isdigit() else step for step in way.split(".")), number)
    with pytest.raises(FieldError, match=words):
        read(document)


@pytest.mark.parametrize(
    ("name", "factor"), [("query_norm", 2), ("key_norm", 2), ("query_norm", 0.999), ("max_logit", 1e6)]
)
def test_sizes_of_a_head_that_its_tensors_do_not_have_are_refused(name: str, factor: float) -> None:
    text, read = document_and_reader("compiled")
    document = json.loads(text)
    document[name] *= factor
    with pytest.raises(FieldError, match=f"^{name}: .* is stored, and "):
        read(document)


def test_blocks_and_heads_beyond_the_model_are_refused() -> None:
    document = json.loads(json.dumps(sample("survey").document()))
    document["cells"][0]["key"][4] = 7
    with pytest.raises(FieldError, match="a block of the 2 in stack decoder is needed, not 7"):
        type(sample("survey")).from_json(document)


def test_every_field_of_a_trial_is_tried() -> None:
    """The sample fills every field, so that each number of it is altered above."""
    document = sample("survey").document()["trial"]
    for kind, made in (
        (Trial, document),
        (Part, document["parts"][0]),
        (Rescaled, document["parts"][0]["rescaled"][0]),
        (HeadTrial, document["heads"][0]),
        (Exposure, document["exposures"][0]),
        (OddWeight, document["weights"][0]),
    ):
        held = {name for name, value in made.items() if value not in (None, [], math.nan)}
        assert {field.name for field in fields(kind)} - held <= {"of"}  # words


@pytest.mark.parametrize(
    ("way", "number", "words"),
    [
        ("parts.0.layer", 2, "trial.parts[0].layer: a block of the 2 in stack decoder is needed, not 2"),
        ("heads.0.head", 2, "trial.heads[0].head: a head of the 2 in stack decoder is needed, not 2"),
        ("bytes", [1], "trial.bytes: as many numbers as counts are needed (4), or none"),
        ("tried_from", 3, "trial.parts[0].rescaled: losses of at most 1 window are needed"),
        ("loss", [4.5], "trial.loss: a list as long as `counts` says is needed"),
        ("weights.0.value", -1, "trial.weights[0].value: a finite number of 0 or more is needed, not -1"),
        ("exposures.0.moved", None, "trial.exposures[0].moved: a finite number of 0 or more is needed, not null"),
    ],
)
def test_trials_that_do_not_fit_their_survey_are_refused(way: str, number: Any, words: str) -> None:
    document = json.loads(json.dumps(sample("survey").document()))
    altered(document["trial"], tuple(int(step) if step.isdigit() else step for step in way.split(".")), number)
    with pytest.raises(FieldError, match=re.escape(words)):
        type(sample("survey")).from_json(document)


def test_every_survey_of_a_real_scan_is_read_back(tmp_path: Path) -> None:
    survey = attnscope.scan("pocket", samples=2, max_tokens=16, measures="all")
    assert attnscope.load(survey.save(tmp_path / "survey.json")) == survey
