"""The types that all rooms share: measures, cards, findings, errors, files and progress. Does not import torch."""
