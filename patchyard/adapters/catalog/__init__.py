"""The catalog: tasks, threads' summaries and tokens in SQLite or PostgreSQL. What it holds of a thread is a projection."""

from .catalog import Catalog
from .errors import CatalogDiskFull, CatalogError, CatalogMisconfigured, CatalogUnavailable, InvalidCursor, NotFound
from .records import (
    CreatedTask,
    Projected,
    ProjectionGap,
    ProjectionResult,
    RememberedRules,
    ThreadSummary,
    TokenRecord,
    TurnSummary,
)

__all__ = [
    "Catalog",
    "CatalogDiskFull",
    "CatalogError",
    "CatalogMisconfigured",
    "CatalogUnavailable",
    "CreatedTask",
    "InvalidCursor",
    "NotFound",
    "Projected",
    "ProjectionGap",
    "ProjectionResult",
    "RememberedRules",
    "ThreadSummary",
    "TokenRecord",
    "TurnSummary",
]
