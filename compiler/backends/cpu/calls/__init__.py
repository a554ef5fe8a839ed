"""A recipe's steps as the call tables of a native program."""
