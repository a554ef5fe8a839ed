"""Machines that trials are measured on: their cores, who they are, whether they can be believed."""
