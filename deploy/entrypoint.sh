#!/bin/sh
# Hands the database's password from the file that PGPASSWORD_FILE names to PostgreSQL's own library,
# which reads it from the environment: it is in no file of ours, no command line and no image.
set -eu
if [ -n "${PGPASSWORD_FILE:-}" ]; then
    PGPASSWORD="$(cat "$PGPASSWORD_FILE")"
    export PGPASSWORD
fi
exec "$@"
