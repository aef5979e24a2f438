"""The chart's README: a table of its values, from the comments in values.yaml."""

from pathlib import Path

import yaml

CHART = Path(__file__).resolve().parent.parent / "deploy/helm/patchyard"


def render() -> str:
    """Markdown. ValueError when a value has no comment."""
    text = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    comments: dict[str, str] = {}
    comment: list[str] = []
    for line in text.splitlines():
        if line.startswith("# "):
            comment.append(line[2:])
        elif line and not line[0].isspace():
            comments[line.split(":")[0]] = " ".join(comment)
            comment = []
    missing = [name for name in defaults if not comments.get(name)]
    if missing:
        raise ValueError(f"values.yaml: no comment above {missing}")
    rows = [
        f"| `{name}` | `{yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}` | {comments[name]} |"
        for name, value in defaults.items()
    ]
    return "\n".join(
        [
            "# Helm chart",
            "",
            "Runs the API and the workers on Kubernetes. Redis, PostgreSQL, an object store and, on the workers' nodes, a Docker",
            "engine with the sandbox image are yours to bring. Whoever holds the engine's socket is root on that node: give",
            "workers nodes of their own.",
            "",
            "| value | default | what it is |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
