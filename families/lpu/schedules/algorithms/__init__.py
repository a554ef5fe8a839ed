"""One algorithm that a scheduler of the room above chooses a file."""
