"""Proposals made outside the process that runs the job."""
