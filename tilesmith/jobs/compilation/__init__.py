"""The job `compile`, what others ask of it, and its reports."""
