"""Serving: sweeps over deployments, requests over time, how many chips a load needs, and its
cost."""
