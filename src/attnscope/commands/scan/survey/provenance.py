"""Provenance of a survey as plain JSON, how it merges, its file format, and the texts behind findings.

Keys: model {name, class, hash, parameters, stacks [{name, layers, heads, causal, tokens, kinds}]}, corpus {name, hash,
sequences, tokens, window, and of a folder files_read, files_skipped}, bos {begins, token, why, and where BOS is absent
from a language model loss_without, loss_with, loss_windows}, measures, not_measured {measure: reason}, dtype, device,
seed, routes, verify, notes, versions, attnscope, created. `tokens` of a stack counts its query tokens; `tokens` of the
corpus counts the items of the corpus (images, for example). `kinds` maps the number of a block without softmax
attention to what it has instead. `notes` are sentences on what was read and on missing parts of the model. Merging is
associative and commutative.

The file format is stable, with one JSON schema for each version beside this file: within a version nothing is removed
or changes its meaning, and new fields are optional. A breaking version gets the next number, its own schema, and a step
from the version before in `STEPS`, so that every old file can still be read.

    from attnscope.commands.scan.survey.provenance import schema
    jsonschema.validate(json.load(open("survey.json")), schema())
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding
from attnscope.reports.record import Step

VERSION = 1
STEPS: Mapping[int, Step] = MappingProxyType({})
"""By version: the function that converts a document to the next version. Steps are never removed."""
MOST_EXCERPTS = 12
Excerpts = dict[int, tuple[str, ...]]
"""Sequences by number, each as the texts of its tokens."""
Sequences = dict[int, dict[str, tuple[int, ...]]]
"""The same sequences as token ids, by argument of the model."""


def schema(version: int = VERSION) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a version."""
    file = resources.files("attnscope.commands.scan.survey").joinpath(f"survey-{version}.schema.json")
    if not file.is_file():
        raise RefusalError(f"There is no version {version} of surveys: give a version from 1 to {VERSION}.")
    read: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return read


def refuse_strangers(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Refuse to merge surveys of different models or precisions."""
    first, second = a.get("model", {}), b.get("model", {})
    if first.get("hash") != second.get("hash"):
        raise RefusalError(
            f"The surveys are of different weights ({_model(first)} and {_model(second)}) and cannot be merged:"
            " use `attnscope compare` to see them side by side."
        )
    if a.get("dtype") != b.get("dtype"):
        raise RefusalError(
            f"The surveys were made in {a.get('dtype')} and in {b.get('dtype')} and cannot be merged:"
            " scan both shards with the same `dtype=`."
        )


def merge_provenance(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key in sorted({*a, *b}):
        if key not in a or key not in b:
            merged[key] = a.get(key, b.get(key))
        elif key == "corpus":
            merged[key] = _merge_corpora(a[key], b[key])
        elif key == "model":
            merged[key] = _merge_models(a[key], b[key])
        elif key == "verify":
            merged[key] = _worse(a[key], b[key])
        elif key == "created":
            merged[key] = max(a[key], b[key])
        else:
            merged[key] = _either(a[key], b[key])
    return merged


def counted(origin: Mapping[str, Any], sequences: int, tokens: int, by_stack: Mapping[str, int]) -> dict[str, Any]:
    """Return provenance with the counts of sequences and tokens."""
    stacks = [{**stack, "tokens": by_stack.get(stack["name"], 0)} for stack in origin["model"]["stacks"]]
    return {
        **origin,
        "model": {**origin["model"], "stacks": stacks},
        "corpus": {**origin["corpus"], "sequences": sequences, "tokens": tokens},
    }


def _merge_models(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two entries of the same weights, which may have been loaded from different folders."""
    merged = {**_either(a, b), "name": min(str(m.get("name")) for m in (a, b))}
    if "stacks" in a and "stacks" in b:
        merged["stacks"] = _merge_stacks(a["stacks"], b["stacks"])
    return merged


def _merge_stacks(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge stacks by name and add their tokens; drop the tokens if one side has no count."""
    first, second = ({str(s.get("name")): s for s in side} for side in (a, b))
    names = list(first) if list(first) == list(second) else sorted({*first, *second})
    merged = []
    for name in names:
        if name not in first or name not in second:
            merged.append(first.get(name) or second[name])
            continue
        left, right = first[name], second[name]
        both = _either({**left, "tokens": None}, {**right, "tokens": None})
        if "tokens" in left and "tokens" in right:
            merged.append({**both, "tokens": left["tokens"] + right["tokens"]})
        else:
            merged.append({k: v for k, v in both.items() if k != "tokens"})
    return merged


def _merge_corpora(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Add sequences and tokens. Shards of one corpus are one entry; several corpora are listed under `shards`."""
    shards: dict[str, dict[str, Any]] = {}
    for shard in [*a.get("shards", [a] if a else []), *b.get("shards", [b] if b else [])]:
        source = {k: v for k, v in shard.items() if k not in ("sequences", "tokens")}
        known = shards.setdefault(_text(source), {**source, "sequences": 0, "tokens": 0})
        known["sequences"] += shard.get("sequences", 0)
        known["tokens"] += shard.get("tokens", 0)
    parts = [shards[text] for text in sorted(shards)]
    if len(parts) <= 1:
        return parts[0] if parts else {}
    hashes = " ".join(str(p.get("hash")) for p in parts)
    windows = {p.get("window") for p in parts}
    return {
        "name": " + ".join(sorted({str(p.get("name")) for p in parts})),
        "hash": hashlib.sha256(hashes.encode()).hexdigest(),
        "sequences": sum(p["sequences"] for p in parts),
        "tokens": sum(p["tokens"] for p in parts),
        "window": windows.pop() if len(windows) == 1 else None,
        "shards": parts,
    }


def _either(a: Any, b: Any) -> Any:
    """Keep equal values, merge mappings key by key, and turn different values into a sorted list."""
    if a == b:
        return a
    if isinstance(a, dict) and isinstance(b, dict):
        return {k: _either(a.get(k, b.get(k)), b.get(k, a.get(k))) for k in sorted({*a, *b})}
    values = {_text(v): v for side in (a, b) for v in (side if isinstance(side, list) else [side])}
    return [values[text] for text in sorted(values)]


def _worse(a: Any, b: Any) -> Any:
    """Merge two verifications: keep the larger difference."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {k: _worse(a.get(k, b.get(k)), b.get(k, a.get(k))) for k in sorted({*a, *b})}
    if isinstance(a, bool) and isinstance(b, bool):
        return a and b
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return max(a, b) if numbers else _either(a, b)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _model(model: Mapping[str, Any]) -> str:
    return f"{model.get('name', 'unnamed')} [{str(model.get('hash', 'no hash'))[:12]}]"


@dataclass(frozen=True)
class Token:
    text: str
    marked: bool


@dataclass(frozen=True)
class Evidence:
    """A sequence and the tokens in it that a finding is about."""

    sample: int
    tokens: tuple[Token, ...]

    @property
    def words(self) -> str:
        places = [str(place) for place, token in enumerate(self.tokens) if token.marked]
        marked = f", token {' and '.join(places)} marked" if places else ""
        return f"The sequence behind this number (sample {self.sample}{marked})"


def view_name(sample: int) -> str:
    """Return the file name of the page of one sequence, beside a report."""
    return f"view-{sample}.html"


def samples_behind(findings: Iterable[Finding]) -> tuple[int, ...]:
    """Return the sequences that findings point at (`details["sample"]`), in order and without repeats."""
    named = (finding.details.get("sample") for finding in findings)
    return tuple(dict.fromkeys(sample for sample in named if isinstance(sample, int)))[:MOST_EXCERPTS]


def evidence(finding: Finding, excerpts: Mapping[int, tuple[str, ...]]) -> Evidence | None:
    """Return the sequence behind a finding, or None if it has none or its text was not kept.

    Sequences are numbered within one corpus, so a survey merged from several corpora keeps none.
    """
    sample = finding.details.get("sample")
    if not isinstance(sample, int) or sample not in excerpts:
        return None
    marked = {finding.details.get(label) for label in ("token", "key")} - {None}
    return Evidence(sample, tuple(Token(text, place in marked) for place, text in enumerate(excerpts[sample])))
