"""JSON Schema -> TypeScript types: just what pydantic emits, so that the web client cannot drift from the server."""

import json
from typing import Any


def render(schemas: dict[str, dict[str, Any]]) -> str:
    """One module with a type for each definition and root."""
    definitions: dict[str, dict[str, Any]] = {}
    for name, schema in sorted(schemas.items()):
        definitions.update(schema.get("$defs", {}))
        root = {key: value for key, value in schema.items() if key not in ("$defs", "$schema", "title")}
        if "$ref" not in root or root["$ref"].rsplit("/", 1)[-1] != _pascal(name):
            definitions.setdefault(_pascal(name), root)
    lines = ["// Generated from patchyard.protocol by `make generate`. Do not edit.", ""]
    for name, schema in sorted(definitions.items()):
        if schema.get("description"):
            lines.append(f"/** {' '.join(schema['description'].split())} */")
        lines += [f"export type {name} = {_type(schema, 0)};", ""]
    return "\n".join(lines)


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _type(schema: dict[str, Any], depth: int) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(_type(option, depth) for option in schema[key]))
    match schema.get("type"):
        case "object":
            return _object(schema, depth)
        case "array":
            return f"Array<{_type(schema.get('items', {}), depth)}>"
        case "string":
            return "string"
        case "integer" | "number":
            return "number"
        case "boolean":
            return "boolean"
        case "null":
            return "null"
        case _:
            return "unknown"


def _object(schema: dict[str, Any], depth: int) -> str:
    if "properties" not in schema:
        extra = schema.get("additionalProperties")
        return f"Record<string, {_type(extra, depth) if isinstance(extra, dict) else 'unknown'}>"
    required = set(schema.get("required", ()))
    pad = "  " * (depth + 1)
    fields = []
    for name, value in schema["properties"].items():
        optional = "" if name in required else "?"
        fields.append(f"{pad}{name}{optional}: {_type(value, depth + 1)};")
    return "{\n" + "\n".join(fields) + "\n" + "  " * depth + "}"
