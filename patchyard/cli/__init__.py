"""The command `patchyard`. It speaks to a service through the SDK and starts processes, but imports no part of either."""
