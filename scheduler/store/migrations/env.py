"""Run by alembic at each migration, on the connection that `migrate` opened."""

from __future__ import annotations

from alembic import context

from scheduler.store import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
)
with context.begin_transaction():
    context.run_migrations()
