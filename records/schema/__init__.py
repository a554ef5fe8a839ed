"""The database as SQL: tables, connections, drivers' faults, the server's clock, migration to the
current schema.
"""
