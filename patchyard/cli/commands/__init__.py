"""One module per group of commands: read the options, call the client, print the result."""
