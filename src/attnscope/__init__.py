"""attnscope shows what attention in a transformer does and whether depth is destroying it.

    import attnscope
    survey = attnscope.scan("pocket")
    attnscope.report(survey, "report.html")

Every command has a twin here. Names are imported when first used: `import attnscope` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "scan": "attnscope.commands.scan.run:scan",
    "report": "attnscope.commands.report:report",
    "load": "attnscope.commands.load:load",
    "compare": "attnscope.commands.compare.record:compare",
    "export": "attnscope.commands.export:export",
    "merge": "attnscope.commands.scan.survey.merge:merge",
    "collapse": "attnscope.commands.collapse.run:collapse",
    "paths": "attnscope.commands.paths.run:paths",
    "task_paths": "attnscope.commands.task_paths.run:task_paths",
    "operator": "attnscope.commands.operator.run:operator",
    "explain": "attnscope.commands.explain.run:explain",
    "view": "attnscope.commands.view.run:view",
    "evaluate": "attnscope.commands.evaluate.run:evaluate",
    "timeline": "attnscope.commands.timeline.run:timeline",
    "watch": "attnscope.commands.watch.run:watch",
    "treat": "attnscope.commands.treat.run:treat",
    "reproduce": "attnscope.papers.run:reproduce",
    "cite": "attnscope.papers.cite:cite",
    "compile": "attnscope.commands.compile.run:compile",
    "capacity": "attnscope.commands.capacity.run:capacity",
    "head_widths": "attnscope.commands.head_widths.run:head_widths",
    "compress": "attnscope.commands.compile.compress:compress",
    "program": "attnscope.papers.programs:program",
    "fixed_keys": "attnscope.commands.compile.fixed_keys:fixed_keys",
    "queries_for": "attnscope.commands.compile.fixed_keys:queries_for",
    "queries_for_many": "attnscope.commands.compile.fixed_keys:queries_for_many",
    "universality": "attnscope.commands.compile.fixed_keys:universality",
    "universal_head": "attnscope.commands.compile.fixed_keys:universal_head",
    "generate": "attnscope.heads.generate:generate",
    "read_pattern": "attnscope.heads.read_pattern:read_pattern",
    "Pattern": "attnscope.heads.pattern:Pattern",
    "catalog": "attnscope.core.registry:catalog",
    "variants": "attnscope.core.registry:variant_catalog",
    "Citation": "attnscope.papers.cite:Citation",
    "Size": "attnscope.core.variant:Size",
    "diagnose": "attnscope.commands.scan.diagnose:diagnose",
    "Thresholds": "attnscope.commands.scan.diagnose:Thresholds",
    "doctor": "attnscope.commands.doctor.run:doctor",
    "Survey": "attnscope.commands.scan.survey.survey:Survey",
    "planted": "attnscope.hf.editing.graft:planted",
    "installed": "attnscope.hf.installed:installed",
    "save_treated": "attnscope.hf.installed:save_treated",
    "largest_logits": "attnscope.hf.installed:largest_logits",
    "Comparison": "attnscope.commands.compare.record:Comparison",
    "Record": "attnscope.reports.record:Record",
    "Collapse": "attnscope.commands.collapse.record:Collapse",
    "Compiled": "attnscope.commands.compile.record:Compiled",
    "Capacity": "attnscope.commands.capacity.record:Capacity",
    "HeadWidths": "attnscope.commands.head_widths.record:HeadWidths",
    "PathReport": "attnscope.commands.paths.record:PathReport",
    "TaskPaths": "attnscope.commands.task_paths.record:TaskPaths",
    "Explanation": "attnscope.commands.explain.record:Explanation",
    "View": "attnscope.commands.view.record:View",
    "Faithfulness": "attnscope.commands.evaluate.record:Faithfulness",
    "OperatorMap": "attnscope.commands.operator.record:OperatorMap",
    "Treatment": "attnscope.commands.treat.record:Treatment",
    "Timeline": "attnscope.commands.timeline.record:Timeline",
    "Reproduction": "attnscope.commands.reproduce.record:Reproduction",
    "RefusalError": "attnscope.core.errors:RefusalError",
}
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from attnscope.commands.capacity.record import Capacity as Capacity
    from attnscope.commands.capacity.run import capacity as capacity
    from attnscope.commands.collapse.record import Collapse as Collapse
    from attnscope.commands.collapse.run import collapse as collapse
    from attnscope.commands.compare.record import Comparison as Comparison
    from attnscope.commands.compare.record import compare as compare
    from attnscope.commands.compile.compress import compress as compress
    from attnscope.commands.compile.fixed_keys import fixed_keys as fixed_keys
    from attnscope.commands.compile.fixed_keys import queries_for as queries_for
    from attnscope.commands.compile.fixed_keys import queries_for_many as queries_for_many
    from attnscope.commands.compile.fixed_keys import universal_head as universal_head
    from attnscope.commands.compile.fixed_keys import universality as universality
    from attnscope.commands.compile.record import Compiled as Compiled
    from attnscope.commands.compile.run import compile as compile
    from attnscope.commands.doctor.run import doctor as doctor
    from attnscope.commands.evaluate.record import Faithfulness as Faithfulness
    from attnscope.commands.evaluate.run import evaluate as evaluate
    from attnscope.commands.explain.record import Explanation as Explanation
    from attnscope.commands.explain.run import explain as explain
    from attnscope.commands.export import export as export
    from attnscope.commands.head_widths.record import HeadWidths as HeadWidths
    from attnscope.commands.head_widths.run import head_widths as head_widths
    from attnscope.commands.load import load as load
    from attnscope.commands.operator.record import OperatorMap as OperatorMap
    from attnscope.commands.operator.run import operator as operator
    from attnscope.commands.paths.record import PathReport as PathReport
    from attnscope.commands.paths.run import paths as paths
    from attnscope.commands.report import report as report
    from attnscope.commands.reproduce.record import Reproduction as Reproduction
    from attnscope.commands.scan.diagnose import Thresholds as Thresholds
    from attnscope.commands.scan.diagnose import diagnose as diagnose
    from attnscope.commands.scan.run import scan as scan
    from attnscope.commands.scan.survey.merge import merge as merge
    from attnscope.commands.scan.survey.survey import Survey as Survey
    from attnscope.commands.task_paths.record import TaskPaths as TaskPaths
    from attnscope.commands.task_paths.run import task_paths as task_paths
    from attnscope.commands.timeline.record import Timeline as Timeline
    from attnscope.commands.timeline.run import timeline as timeline
    from attnscope.commands.treat.record import Treatment as Treatment
    from attnscope.commands.treat.run import treat as treat
    from attnscope.commands.view.record import View as View
    from attnscope.commands.view.run import view as view
    from attnscope.commands.watch.run import watch as watch
    from attnscope.core.errors import RefusalError as RefusalError
    from attnscope.core.registry import catalog as catalog
    from attnscope.core.registry import variant_catalog
    from attnscope.core.variant import Size as Size
    from attnscope.heads.generate import generate as generate
    from attnscope.heads.pattern import Pattern as Pattern
    from attnscope.heads.read_pattern import read_pattern as read_pattern
    from attnscope.hf.editing.graft import planted as planted
    from attnscope.hf.installed import installed as installed
    from attnscope.hf.installed import largest_logits as largest_logits
    from attnscope.hf.installed import save_treated as save_treated
    from attnscope.papers.cite import Citation as Citation
    from attnscope.papers.cite import cite as cite
    from attnscope.papers.programs import program as program
    from attnscope.papers.run import reproduce as reproduce
    from attnscope.reports.record import Record as Record

    variants = variant_catalog  # called like the room beside this file, which is called as well


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope.core.errors import asking_for_torch

    module, _, attribute = _HOMES[name].partition(":")
    with asking_for_torch():
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
