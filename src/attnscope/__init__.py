"""attnscope shows what attention in a transformer does and whether depth is destroying it.

    import attnscope
    survey = attnscope.scan("pocket")
    attnscope.report(survey, "report.html")

Every command has a twin here: a function of the same name. Names are imported when first used, so that
`import attnscope` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Twins in attnscope.commands.NAME.run
_TWINS = (
    *("scan", "collapse", "paths", "task_paths", "logit_paths", "operator", "explain", "evaluate", "view", "timeline"),
    *("watch", "treat", "compile", "capacity", "head_widths", "doctor", "atlas", "place"),
)
_HOMES = {name: f"commands.{name}.run:{name}" for name in _TWINS} | {
    "report": "commands.records:report",
    "load": "commands.records:load",
    "compare": "commands.compare.run:compare",
    "export": "commands.records:export",
    "merge": "commands.scan.survey.merge:merge",
    "diagnose": "commands.scan.diagnose:diagnose",
    "reproduce": "papers.run:reproduce",
    "cite": "papers.cite:cite",
    "catalog": "core.registry:catalog",
    "variants": "core.registry:variant_catalog",
    "generate": "heads.generate:generate",
    "read_pattern": "heads.read_pattern:read_pattern",
    "installed": "hf.installed:installed",
    "save_treated": "hf.installed:save_treated",
    "planted": "hf.editing.graft:planted",
    "Survey": "commands.scan.survey.survey:Survey",
    "Record": "reports.record:Record",
    "Pattern": "heads.pattern:Pattern",
    "Thresholds": "commands.scan.diagnose:Thresholds",
    "Loading": "hf.loading.options:Loading",
    "Sampling": "hf.loading.options:Sampling",
    "Citation": "papers.cite:Citation",
    "RefusalError": "core.errors:RefusalError",
}
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from attnscope.commands.atlas.run import atlas as atlas
    from attnscope.commands.capacity.run import capacity as capacity
    from attnscope.commands.collapse.run import collapse as collapse
    from attnscope.commands.compare.run import compare as compare
    from attnscope.commands.compile.run import compile as compile
    from attnscope.commands.doctor.run import doctor as doctor
    from attnscope.commands.evaluate.run import evaluate as evaluate
    from attnscope.commands.explain.run import explain as explain
    from attnscope.commands.head_widths.run import head_widths as head_widths
    from attnscope.commands.logit_paths.run import logit_paths as logit_paths
    from attnscope.commands.operator.run import operator as operator
    from attnscope.commands.paths.run import paths as paths
    from attnscope.commands.place.run import place as place
    from attnscope.commands.records import export as export
    from attnscope.commands.records import load as load
    from attnscope.commands.records import report as report
    from attnscope.commands.scan.diagnose import Thresholds as Thresholds
    from attnscope.commands.scan.diagnose import diagnose as diagnose
    from attnscope.commands.scan.run import scan as scan
    from attnscope.commands.scan.survey.merge import merge as merge
    from attnscope.commands.scan.survey.survey import Survey as Survey
    from attnscope.commands.task_paths.run import task_paths as task_paths
    from attnscope.commands.timeline.run import timeline as timeline
    from attnscope.commands.treat.run import treat as treat
    from attnscope.commands.view.run import view as view
    from attnscope.commands.watch.run import watch as watch
    from attnscope.core.errors import RefusalError as RefusalError
    from attnscope.core.registry import catalog as catalog
    from attnscope.core.registry import variant_catalog
    from attnscope.heads.generate import generate as generate
    from attnscope.heads.pattern import Pattern as Pattern
    from attnscope.heads.read_pattern import read_pattern as read_pattern
    from attnscope.hf.editing.graft import planted as planted
    from attnscope.hf.installed import installed as installed
    from attnscope.hf.installed import save_treated as save_treated
    from attnscope.hf.loading.options import Loading as Loading
    from attnscope.hf.loading.options import Sampling as Sampling
    from attnscope.papers.cite import Citation as Citation
    from attnscope.papers.cite import cite as cite
    from attnscope.papers.run import reproduce as reproduce
    from attnscope.reports.record import Record as Record

    variants = variant_catalog  # has the name of the package attnscope.variants, which is callable too


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope.core.errors import refuse_missing_torch

    module, _, attribute = _HOMES[name].partition(":")
    with refuse_missing_torch():
        return getattr(importlib.import_module(f"attnscope.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
