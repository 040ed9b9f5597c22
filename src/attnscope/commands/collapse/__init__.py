"""What depth does to the differences between tokens: the work of `collapse`."""
