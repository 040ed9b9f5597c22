"""The page of file formats: the fields of every kind of record, from its class."""

from __future__ import annotations

from dataclasses import fields

from attnscope.commands.records import KINDS, class_of
from tools.site.markdown import code, prose, table

SCHEMA = "The file is described by [a schema](../other_hands.md#the-survey-format).\n"


def formats_page() -> str:
    rows, parts = [], []
    for kind in KINDS:
        record = class_of(kind)
        said = prose(" ".join((record.__doc__ or "").split("\n\n")[0].split()))
        said = "" if said.startswith(f"{record.__name__}(") else said
        rows.append((f"[{code(kind)}](#{kind})", code(record.FILE), str(record.VERSION), record.made_by()))
        shown = [one for one in fields(record) if not one.name.startswith("_")]  # type: ignore[arg-type]
        own = [(code(one.name), code(_type(one.type))) for one in shown]
        # The file of a survey holds sums, so a schema describes it instead of its fields.
        listed = SCHEMA if kind == "survey" else table(("field", "type"), own) if own else ""
        parts.append(f"## {kind}\n\nIn Python `attnscope.{record.__name__}`. {said}\n\n{listed}")
    return "\n".join(
        [
            "# File formats\n",
            'What a command finds is one JSON document, `{"format": "attnscope-KIND", "version": N, ...fields}`; a '
            "compiled head is a safetensors file. `attnscope.load(path)` reads them all, `record.save(path)` writes "
            "them, `attnscope report FILE` draws their page. What is promised about versions: "
            "[the survey format](../other_hands.md#the-survey-format).\n",
            table(("kind", "file", "version", "made by"), rows),
            *parts,
        ]
    )


def _type(annotation: object) -> str:
    return str(getattr(annotation, "__name__", annotation)).replace("`", "")
