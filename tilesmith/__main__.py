"""`python -m tilesmith` is the command `tilesmith`."""

from tilesmith.command_line import main

if __name__ == "__main__":
    main()
