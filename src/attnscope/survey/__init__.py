"""Surveys: labelled, mergeable, self-describing; their file; what they say in plain sentences. No torch here."""

from attnscope.core.finding import Finding
from attnscope.survey.cell import Cell, Key
from attnscope.survey.compare import Comparison, compare
from attnscope.survey.diagnose import diagnose
from attnscope.survey.ledger import Ledger
from attnscope.survey.survey import Survey
from attnscope.survey.thresholds import Thresholds

__all__ = ["Cell", "Comparison", "Finding", "Key", "Ledger", "Survey", "Thresholds", "compare", "diagnose"]
