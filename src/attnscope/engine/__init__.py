"""Run numbered tasks in processes on this machine or on a Ray cluster."""
