"""What families' code generators and checkers ask of a bound program."""
