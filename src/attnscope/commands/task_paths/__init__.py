"""Find which heads carry a task, over many prompts, with error bars."""
