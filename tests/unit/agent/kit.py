"""What the tests of the agent core do again and again."""

import asyncio


def run(h, *ops):
    """Submit these Ops (user input when there are none) and run the session to its end, with every step of the script used."""

    async def main():
        for op in ops or (None,):
            h.submit(op)
        outcome = await h.run()
        h.assert_done()
        return outcome

    return asyncio.run(main())


def texts(items):
    """All texts of the messages among these items."""
    return [part.text for item in items if item.type == "message" for part in item.content]
