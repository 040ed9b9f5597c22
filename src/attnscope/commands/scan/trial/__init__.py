"""Interventions on a model that a scan makes on a few windows of the corpus."""
