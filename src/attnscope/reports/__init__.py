"""What a person reads: records, documents, charts and their renderers for pages, terminals and notebooks. No torch here."""
