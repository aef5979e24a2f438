"""The command line at a terminal: what a person sees there and types."""

import codecs
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.e2e.fleet import Fleet
from tests.waiting import WAIT_S


@dataclass
class Screen:
    """The other end of a terminal."""

    fd: int
    process: "subprocess.Popen[bytes]"
    text: str = ""
    _seen: int = 0
    _decoder: codecs.IncrementalDecoder = field(default_factory=codecs.getincrementaldecoder("utf-8"))

    def read_until(self, words: str) -> None:
        until = time.monotonic() + WAIT_S
        while words not in self.text[self._seen :]:
            assert time.monotonic() < until, self.text
            if not self._read():
                break
        position = self.text.find(words, self._seen)
        assert position >= 0, self.text
        self._seen = position + len(words)

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 1)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the terminal of a program that has ended
            return False
        self.text += self._decoder.decode(data)
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait(self) -> int:
        while self._read():
            pass
        return self.process.wait(WAIT_S)


@contextmanager
def terminal(service: Fleet, *args: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "patchyard.cli", *args],
        env={**service.home.env, "TERM": "dumb", "COLUMNS": "200"},
        cwd=service.home.root,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Screen(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
