"""What people and scripts are shown: tables, JSON, progress, charts, pages."""
