"""Cost models trained before the job, on a database's trials: corpus, fitting, arrays."""
