"""From a pattern to the narrowest head that realises it: choosing a construction, searching over widths, capacity."""
