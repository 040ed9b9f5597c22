"""One file for each kind of finding, named like it; the room's listing is the registry (core.registry.findings).

Every finding names the measure it was read from in `details["measure"]`.

Severities: `note` is worth knowing and normal in trained models; `warning` deserves a look; `critical` means
broken, and is what a gate should stop at.
"""
