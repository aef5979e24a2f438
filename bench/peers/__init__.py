"""Patchyard beside what a user would pick instead: the same trajectory, the same model server, one run."""
