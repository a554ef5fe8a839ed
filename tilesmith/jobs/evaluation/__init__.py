"""The jobs `bench` and `simulate`: a compiled subject's latency and accuracy."""
