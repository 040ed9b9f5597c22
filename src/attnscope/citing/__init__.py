"""What things stand on, as BibTeX: the papers behind measures, variants, findings, experiments; attnscope itself."""
