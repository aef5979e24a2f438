"""What the model is given: history, surroundings, text from outside, and how many tokens it is."""
