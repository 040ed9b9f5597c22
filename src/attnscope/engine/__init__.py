"""Where work runs: processes on this machine, or a Ray cluster. It knows numbered tasks, not what they are about."""
