"""Surveys: labelled, mergeable, self-describing; their file; what they say in plain sentences. No torch here."""

from attnscope.core.finding import Finding
from attnscope.records.survey.cell import Cell, Key
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.ledger import Ledger
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

__all__ = ["Cell", "Finding", "Key", "Ledger", "Survey", "Thresholds", "diagnose"]
