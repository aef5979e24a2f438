"""Process 1: accepts, validates, enqueues, streams. Knows no agent code and never imports `workers`."""
