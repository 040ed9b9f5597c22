"""Check this installation: versions, devices, extras, the cache, and a verified scan."""
