"""What one claim of one thread needs while it runs: channel, boxes, delivery."""
