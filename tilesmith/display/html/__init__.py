"""Self-contained HTML pages: charts, labels, templates."""
