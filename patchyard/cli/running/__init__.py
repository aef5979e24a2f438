"""From a command line to a task, and from a task's events to an exit code."""
