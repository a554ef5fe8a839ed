"""Every schema the database ever had, as Alembic migrations (run by `records.schema`)."""
