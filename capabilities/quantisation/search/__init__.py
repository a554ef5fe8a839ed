"""Which way of quantising costs least accuracy."""
