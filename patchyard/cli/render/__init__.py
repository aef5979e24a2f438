"""How things look on a terminal. Text from outside passes `text.safe` first."""
