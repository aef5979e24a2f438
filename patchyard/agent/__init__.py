"""The agent core: a session runs the turns of one thread. Pure asyncio; the outside world is `ports`.

Nothing is imported here: whoever needs the ports only (adapters, the API) must not load the whole core.
"""
