"""Schema history of the catalog: one file a step, applied in order by `Catalog.migrate()`."""
