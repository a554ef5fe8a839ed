"""Alembic's entry point: run migrations on the connection that `records.schema` passes in.

The caller has opened the transaction; an upgrade happens whole or not at all.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
