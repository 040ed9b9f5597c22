"""Build the documentation site: collect the pages, write the reference from the code, and draw the gallery."""
