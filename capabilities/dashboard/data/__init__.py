"""What the live page reads of a database, in bounded time."""
