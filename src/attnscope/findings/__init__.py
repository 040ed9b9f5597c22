"""One file for each kind of finding, of the same name; the directory listing is the registry.

Every finding names its measure in `details["measure"]`. Severities: a `note` is normal in trained models, a `warning`
should be checked, `critical` means broken and should fail a CI gate.
"""
