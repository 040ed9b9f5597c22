"""One file for each kind of finding, of the same name; the directory listing is the registry.

Every finding names its measure in `details["measure"]`. Severities: a `note` is normal in trained models, a `warning`
deserves a look, `critical` means broken and should stop a gate.
"""
