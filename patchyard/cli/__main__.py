"""`python -m patchyard.cli`, the same as `patchyard`."""

from patchyard.cli.main import main

main()
