"""Surveys: labelled, mergeable, self-describing; their file; what they say in plain sentences. No torch here."""
