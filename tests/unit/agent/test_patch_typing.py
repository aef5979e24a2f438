import asyncio
import json
import random

import pytest

from patchyard.agent.tools.patch_progress import JsonStringValue, PatchTyping
from patchyard.protocol.model_items import FunctionCall
from patchyard.testing.builders import completed, patch_call, says, typed
from patchyard.testing.harness import AgentHarness

PATCH = (
    "*** Begin Patch\n*** Add File: näw \"q\".py\n+print('\\n😀')\n*** Update File: a.py\n*** Move to: b.py\n@@\n-x\n+y\n"
    "*** Delete File: c.py\n*** End Patch"
)
PATHS = ('näw "q".py', "a.py", "b.py", "c.py")
FILES = {"/workspace/a.py": b"x\n", "/workspace/c.py": b""}


@pytest.mark.parametrize("freeform", [True, False])
def test_files_are_shown_while_the_patch_is_typed(freeform):
    async def main():
        item = patch_call(PATCH, "c1")
        if not freeform:
            item = FunctionCall(call_id="c1", name="apply_patch", arguments=json.dumps({"input": PATCH}), id="fc_1")
        h = AgentHarness([[*typed(item), completed()], says("ok")], files=FILES, freeform_patch=freeform)
        h.submit()
        await h.run()
        h.assert_done()
        shown = [m for m in h.channel.shown if m.type == "patch_progress"]
        assert len(shown) >= 3
        assert (shown[0].item_id, shown[0].paths) == ("c1", PATHS[:1])
        assert shown[-1].paths == PATHS
        deltas = [m for m in h.channel.shown if m.type == "tool_call_input_delta"]
        assert "".join(d.delta for d in deltas) == (item.input if freeform else item.arguments)
        assert set(h.box.files) == {'/workspace/näw "q".py', "/workspace/b.py"}

    asyncio.run(main())


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_json_text_in_pieces_is_the_text(ascii_only):
    for seed in range(200):
        rng = random.Random(seed)
        text = "".join(rng.choice('ab\n\t"\\/é😀\u2028\x01') for _ in range(40))
        whole = json.dumps({"other": 1, "input": text}, ensure_ascii=ascii_only)
        reader, got = JsonStringValue(), ""
        while whole:
            size = rng.randint(1, 5)
            got, whole = got + reader.feed(whole[:size]), whole[size:]
        assert got == text


def test_text_that_is_no_patch_shows_nothing():
    typing = PatchTyping(json_arguments=True)
    assert typing.feed('{"input": "hello' + "x" * 10_000) is None
    assert PatchTyping(json_arguments=True).feed("nonsense" * 1000) is None
