"""From SQLAlchemy's errors to the catalog's. Never shows a statement's parameters or the URL's password."""

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from patchyard.adapters.catalog.errors import CatalogDiskFull, CatalogError, CatalogMisconfigured, CatalogUnavailable

_NO_SCHEMA = "The catalog's tables are missing or old. Run `patchyard up`, or Catalog.migrate(), with this version."
_REFUSED = ("authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry", "permission denied")
_NOT_A_DATABASE = ("unable to open database", "readonly database", "not a database", "malformed")


def translate(error: SQLAlchemyError) -> CatalogError:
    """The catalog's error for the database's."""
    if isinstance(error, PoolTimeout):
        return CatalogUnavailable("all its connections are busy")
    if not isinstance(error, DBAPIError):
        return CatalogMisconfigured(f"The catalog was used wrongly: {type(error).__name__}. Please report it.")
    text = _first_line(error)
    state = str(getattr(error.orig, "sqlstate", None) or "")
    if state == "53100" or "disk is full" in text or "no space left" in text.lower():
        return CatalogDiskFull()
    if state in ("42P01", "42703") or "no such table" in text or "no such column" in text:
        return CatalogMisconfigured(_NO_SCHEMA)
    if state[:2] in ("28", "3D") or state == "42501" or any(part in text for part in (*_REFUSED, *_NOT_A_DATABASE)):
        return CatalogMisconfigured(f"The catalog cannot be used: {text}. Check PATCHYARD_CATALOG_URL and its rights.")
    if isinstance(error, DataError | IntegrityError | ProgrammingError):
        # Asking again gives the same answer, so it must not look like an outage.
        return CatalogMisconfigured(f"The catalog refused a value: {text}. Please report it.")
    return CatalogUnavailable(text)


def _first_line(error: DBAPIError) -> str:
    # The driver's own words: SQLAlchemy's would add the statement and its parameters.
    lines = str(error.orig).strip().splitlines()
    return lines[-1 if len(lines) > 1 and "failed" in lines[-1].lower() else 0].strip().rstrip(".") if lines else "no answer"
