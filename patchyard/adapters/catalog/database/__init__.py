"""The database below the catalog: tables, engine, transactions, migrations, errors."""
