"""200 turns held by one worker process, 50 of them streaming, each with 100 kB of history: `bench.live` with these numbers."""

import sys

from bench.live import main

if __name__ == "__main__":
    sys.argv[1:1] = ["--turns", "200", "--streaming", "50", "--context-kb", "100"]
    main()
