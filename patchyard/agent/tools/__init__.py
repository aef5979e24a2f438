"""The tools that the model can call, and the runner of their calls."""
