"""The work of experiments that is too long for one file: what is trained, walked and drawn, and the numbers of it."""
