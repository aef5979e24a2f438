"""Several processes on one folder, some of them killed."""

import asyncio
import subprocess
import sys
from pathlib import Path

from patchyard.adapters.store import FilesystemStore, StoredSegments
from patchyard.protocol.ids import new_id
from patchyard.rollout import SegmentRecorder, StoredLine, read_lines, thread_prefix
from tests.waiting import PROCESS_S

ROOT = Path(__file__).parents[3]

_RACE = """
import asyncio, sys
from pathlib import Path
from patchyard.adapters.store import FilesystemStore, ObjectExists

async def main(root, me):
    store = FilesystemStore(Path(root))
    print("ready", flush=True)
    sys.stdin.readline()
    won = []
    for number in range(50):
        try:
            await store.put(f"race/{number}", me.encode(), if_absent=True)
            won.append(number)
        except ObjectExists:
            pass
    print(*won, flush=True)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""

_WRITER = """
import asyncio, sys
from pathlib import Path
from patchyard.adapters.store import FilesystemStore, StoredSegments
from patchyard.rollout import SegmentRecorder, StoredLine

async def main(root, thread):
    recorder = SegmentRecorder(StoredSegments(FilesystemStore(Path(root))), "default", thread)
    position = await recorder.stored_through() + 1
    while True:
        lines = [StoredLine(n, b'{"ordinal":%d}' % n) for n in range(position, position + 3)]
        position = await recorder.append(lines) + 1
        print(position, flush=True)
        if position % 5 == 0:
            await recorder.merge()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_race_for_names_share_them_out(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _RACE, str(tmp_path), str(me)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {me: process.communicate(timeout=PROCESS_S)[0].split() for me, process in enumerate(processes)}
    assert sorted(int(n) for numbers in won.values() for n in numbers) == list(range(50))
    for me, numbers in won.items():
        assert all((tmp_path / "race" / number).read_text() == str(me) for number in numbers)


def test_what_a_killed_writer_had_confirmed_is_there_and_the_next_goes_on(tmp_path: Path) -> None:
    thread = new_id()
    confirmed = 0
    for round_ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), thread], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(3 + 4 * round_):
            confirmed = int(process.stdout.readline())
        process.kill()
        rest = process.communicate()[0].split()
        confirmed = int(rest[-1]) if rest else confirmed

    async def run() -> None:
        store = FilesystemStore(tmp_path)
        segments = StoredSegments(store)
        found = [line.ordinal async for line in read_lines(segments, thread_prefix("default", thread))]
        assert found == list(range(len(found)))
        assert len(found) >= confirmed > 50
        recorder = SegmentRecorder(segments, "default", thread)
        await recorder.append([StoredLine(n, b'{"ordinal":%d}' % n) for n in range(confirmed, confirmed + 9)])
        await recorder.merge()
        assert all("-" in key.rpartition("/")[2] for key in (await store.list(thread_prefix("default", thread))).keys)
        await store.close()

    asyncio.run(run())
