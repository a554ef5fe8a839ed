"""The laws that a schedule keeps, proved of every burst."""
