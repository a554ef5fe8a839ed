"""One operator's space, configuration or record looked at."""
