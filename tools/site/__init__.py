"""The documentation site: pages put together, the reference written from the code, the gallery drawn."""
