#!/bin/sh
# Run once by the postgres image when it makes the database: a role that may only read, for the
# dashboard, and for machines that compile with the team's schedules.
set -eu
psql --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" \
    --set=password="$(cat "${READER_PASSWORD_FILE:-/run/secrets/reader_password}")" <<'SQL'
CREATE ROLE tilesmith_reader LOGIN PASSWORD :'password';
GRANT USAGE ON SCHEMA public TO tilesmith_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO tilesmith_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO tilesmith_reader;
SQL
