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
    "scan": "attnscope.scanning.scan:scan",
    "report": "attnscope.reporting.report:report",
    "load": "attnscope.records.load:load",
    "compare": "attnscope.records.comparison:compare",
    "export": "attnscope.records.export:export",
    "merge": "attnscope.records.survey.merge:merge",
    "collapse": "attnscope.collapsing.collapse:collapse",
    "paths": "attnscope.decomposing.paths:paths",
    "task_paths": "attnscope.decomposing.task_paths:task_paths",
    "operator": "attnscope.decomposing.operator:operator",
    "explain": "attnscope.explaining.explain:explain",
    "view": "attnscope.viewing.view:view",
    "evaluate": "attnscope.explaining.evaluate:evaluate",
    "timeline": "attnscope.following.timeline:timeline",
    "watch": "attnscope.watching.ways:watch",
    "treat": "attnscope.treating.treat:treat",
    "reproduce": "attnscope.reproducing.reproduce:reproduce",
    "cite": "attnscope.citing.cite:cite",
    "compile": "attnscope.compiling.compile:compile",
    "capacity": "attnscope.compiling.capacity:capacity",
    "head_widths": "attnscope.compiling.head_widths:head_widths",
    "compress": "attnscope.compiling.compress:compress",
    "program": "attnscope.compiling.programs:program",
    "fixed_keys": "attnscope.compiling.universal:fixed_keys",
    "queries_for": "attnscope.compiling.universal:queries_for",
    "query_server": "attnscope.compiling.query_server:query_server",
    "universality": "attnscope.compiling.universal:universality",
    "universal_head": "attnscope.compiling.universal:universal_head",
    "generate": "attnscope.patterns.generate:generate",
    "read_pattern": "attnscope.patterns.sources:read_pattern",
    "Pattern": "attnscope.patterns.pattern:Pattern",
    "catalog": "attnscope.core.registry:catalog",
    "variants": "attnscope.core.registry:variant_catalog",
    "Citation": "attnscope.citing.cite:Citation",
    "Size": "attnscope.core.variant:Size",
    "diagnose": "attnscope.records.survey.diagnose:diagnose",
    "Thresholds": "attnscope.records.survey.thresholds:Thresholds",
    "doctor": "attnscope.scanning.doctor:doctor",
    "Survey": "attnscope.records.survey.survey:Survey",
    "planted": "attnscope.hf.editing.graft:planted",
    "installed": "attnscope.exchanging.installed:installed",
    "save_treated": "attnscope.exchanging.save_treated:save_treated",
    "largest_logits": "attnscope.exchanging.largest_logits:largest_logits",
    "Comparison": "attnscope.records.comparison:Comparison",
    "Record": "attnscope.records.record:Record",
    "Collapse": "attnscope.records.collapse:Collapse",
    "Compiled": "attnscope.records.compiled:Compiled",
    "Capacity": "attnscope.records.capacity:Capacity",
    "HeadWidths": "attnscope.records.head_widths:HeadWidths",
    "PathReport": "attnscope.records.paths:PathReport",
    "TaskPaths": "attnscope.records.task_paths:TaskPaths",
    "Explanation": "attnscope.records.explanation:Explanation",
    "View": "attnscope.records.view:View",
    "Faithfulness": "attnscope.records.faithfulness:Faithfulness",
    "OperatorMap": "attnscope.records.operator_map:OperatorMap",
    "Treatment": "attnscope.records.treatment:Treatment",
    "Timeline": "attnscope.records.timeline.timeline:Timeline",
    "Reproduction": "attnscope.records.reproduction:Reproduction",
    "RefusalError": "attnscope.core.errors:RefusalError",
}
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from attnscope.citing.cite import Citation as Citation
    from attnscope.citing.cite import cite as cite
    from attnscope.collapsing.collapse import collapse as collapse
    from attnscope.compiling.capacity import capacity as capacity
    from attnscope.compiling.compile import compile as compile
    from attnscope.compiling.compress import compress as compress
    from attnscope.compiling.head_widths import head_widths as head_widths
    from attnscope.compiling.programs import program as program
    from attnscope.compiling.query_server import query_server as query_server
    from attnscope.compiling.universal import fixed_keys as fixed_keys
    from attnscope.compiling.universal import queries_for as queries_for
    from attnscope.compiling.universal import universal_head as universal_head
    from attnscope.compiling.universal import universality as universality
    from attnscope.core.errors import RefusalError as RefusalError
    from attnscope.core.registry import catalog as catalog
    from attnscope.core.registry import variant_catalog
    from attnscope.core.variant import Size as Size
    from attnscope.decomposing.operator import operator as operator
    from attnscope.decomposing.paths import paths as paths
    from attnscope.decomposing.task_paths import task_paths as task_paths
    from attnscope.exchanging.installed import installed as installed
    from attnscope.exchanging.largest_logits import largest_logits as largest_logits
    from attnscope.exchanging.save_treated import save_treated as save_treated
    from attnscope.explaining.evaluate import evaluate as evaluate
    from attnscope.explaining.explain import explain as explain
    from attnscope.following.timeline import timeline as timeline
    from attnscope.hf.editing.graft import planted as planted
    from attnscope.patterns.generate import generate as generate
    from attnscope.patterns.pattern import Pattern as Pattern
    from attnscope.patterns.sources import read_pattern as read_pattern
    from attnscope.records.capacity import Capacity as Capacity
    from attnscope.records.collapse import Collapse as Collapse
    from attnscope.records.comparison import Comparison as Comparison
    from attnscope.records.comparison import compare as compare
    from attnscope.records.compiled import Compiled as Compiled
    from attnscope.records.explanation import Explanation as Explanation
    from attnscope.records.export import export as export
    from attnscope.records.faithfulness import Faithfulness as Faithfulness
    from attnscope.records.head_widths import HeadWidths as HeadWidths
    from attnscope.records.load import load as load
    from attnscope.records.operator_map import OperatorMap as OperatorMap
    from attnscope.records.paths import PathReport as PathReport
    from attnscope.records.record import Record as Record
    from attnscope.records.reproduction import Reproduction as Reproduction
    from attnscope.records.survey.diagnose import diagnose as diagnose
    from attnscope.records.survey.merge import merge as merge
    from attnscope.records.survey.survey import Survey as Survey
    from attnscope.records.survey.thresholds import Thresholds as Thresholds
    from attnscope.records.task_paths import TaskPaths as TaskPaths
    from attnscope.records.timeline.timeline import Timeline as Timeline
    from attnscope.records.treatment import Treatment as Treatment
    from attnscope.records.view import View as View
    from attnscope.reporting.report import report as report
    from attnscope.reproducing.reproduce import reproduce as reproduce
    from attnscope.scanning.doctor import doctor as doctor
    from attnscope.scanning.scan import scan as scan
    from attnscope.treating.treat import treat as treat
    from attnscope.viewing.view import view as view
    from attnscope.watching.ways import watch as watch

    variants = variant_catalog  # called like the room beside this file, which is called as well


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnscope' has no attribute '{name}'")
    from attnscope.core.torch_extra import asking_for_torch

    module, _, attribute = _HOMES[name].partition(":")
    with asking_for_torch():
        return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
