"""What `attnscope timeline` and `attnscope watch RUN` do: runs read, made of checkpoints, followed while they grow."""
