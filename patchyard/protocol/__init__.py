"""The vocabulary: every shape that crosses a process border. Pydantic and the standard library only, no behaviour."""
