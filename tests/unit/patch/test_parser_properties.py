"""What must hold for every text, however it arrives."""

from hypothesis import given
from hypothesis import strategies as st

from patchyard.patch import PatchParser, PatchSyntaxError

WHOLE = """*** Begin Patch
*** Environment ID: local
*** Add File: a b.txt
+one
+
*** Delete File: d
*** Update File: f
*** Move to: g
 first

-x
+y
@@ class A
@@   def m
 z
*** End of File

*** Update File: h
@@
+last
*** End Patch
"""

_LINES = st.sampled_from(
    [
        *WHOLE.splitlines(),
        "",
        " ",
        "@@",
        "@@ a",
        "+",
        "- ",
        " *** End Patch",
        "*** End Patch",
        "EOF",
        "<<EOF",
        "junk",
        "\u2028x",
        "+a\r",
    ]
)


def _outcome(parser: PatchParser):
    try:
        return parser.finish()
    except PatchSyntaxError as error:
        return (type(error), str(error), error.line)


@given(
    st.one_of(
        st.lists(_LINES, max_size=12).map("\n".join),
        st.lists(_LINES, max_size=4).map(lambda extra: "\n".join([*WHOLE.splitlines()[:-1], *extra, "*** End Patch"])),
        st.lists(_LINES, max_size=3).map(lambda extra: "\n".join(["<<EOF", *WHOLE.splitlines(), *extra, "EOF"])),
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_streaming_equals_batch_on_every_split(text, line_end, data):
    text = text.replace("\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    whole, pieces, letters = PatchParser(), PatchParser(), PatchParser()

    whole.feed(text)
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces.feed(text[start:end])
    for letter in text:
        letters.feed(letter)

    expected = _outcome(whole)
    assert _outcome(pieces) == expected
    assert _outcome(letters) == expected
    assert pieces.progress == whole.progress == letters.progress
