"""The format of survey files, as JSON schemas that lie beside this file: one for every version that there has been.

    from attnscope.records.survey.schema import schema
    jsonschema.validate(json.load(open("survey.json")), schema())

The format is stable: within a version nothing is taken away or changes its meaning, and what is added may be absent.
A version that breaks this gets the next number, its own schema, and a step from the one before it in `STEPS`, so that
every file that was ever written can still be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.records.record import Step

VERSION = 1

STEPS: Mapping[int, Step] = MappingProxyType({})
"""By version: what makes a document of it one of the next version. Never taken out again."""


def schema(version: int = VERSION) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a version."""
    file = resources.files("attnscope.records.survey").joinpath(f"survey-{version}.schema.json")
    if not file.is_file():
        raise RefusalError(f"There is no version {version} of surveys: they have versions from 1 to {VERSION}.")
    read: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return read
