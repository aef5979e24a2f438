"""Whether a Redis server may hold the queue: it must keep what it has acknowledged, and must never drop keys by itself."""

from collections.abc import Mapping

from ._types import Problem, QueueHealth

MINIMUM_MAJOR = 7


def judge(facts: Mapping[str, str], *, allow_volatile: bool) -> QueueHealth:
    """The verdict on a server's facts (`redis_version`, `appendonly`, `appendfsync`, `maxmemory-policy`, …)."""
    version = facts.get("valkey_version") or facts.get("redis_version", "0")
    return QueueHealth(
        server="valkey" if "valkey_version" in facts else "redis",
        version=version,
        appendonly=facts.get("appendonly") == "yes",
        appendfsync=facts.get("appendfsync", "unknown"),
        maxmemory_policy=facts.get("maxmemory-policy", "unknown"),
        problems=_problems(facts),
        volatile_allowed=allow_volatile and not _too_old(facts),
    )


def _too_old(facts: Mapping[str, str]) -> bool:
    major = facts.get("redis_version", "0").split(".")[0]
    return not major.isdigit() or int(major) < MINIMUM_MAJOR


def _problems(facts: Mapping[str, str]) -> list[Problem]:
    problems = []
    if _too_old(facts):
        problems.append(
            Problem(
                f"the server's version is {facts.get('redis_version', 'unknown')}",
                "install Redis 7 or later, or Valkey",
            )
        )
    wanted = {
        "appendonly": ("yes", "a restart would lose accepted submissions"),
        "appendfsync": ("always", "a power cut would lose accepted submissions"),
        "maxmemory-policy": ("noeviction", "the server would drop queues when memory runs out"),
        "no-appendfsync-on-rewrite": ("no", "a power cut during a rewrite would lose accepted submissions"),
    }
    for setting, (value, why) in wanted.items():
        found = facts.get(setting)
        if found is None:
            remedy = f"allow CONFIG GET for this user, or make sure that `{setting} {value}` is set"
            problems.append(Problem(f"`{setting}` can't be read", remedy))
        elif found != value:
            remedy = f"set `{setting} {value}` in its configuration (or `CONFIG SET {setting} {value}`, then `CONFIG REWRITE`)"
            problems.append(Problem(f"`{setting}` is `{found}`: {why}", remedy))
    return problems
