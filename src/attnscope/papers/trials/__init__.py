"""Parts of experiments that would make their files too long."""
