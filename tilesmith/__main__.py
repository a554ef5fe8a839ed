"""`python -m tilesmith` is the command `tilesmith`."""

from tilesmith.entry import main

if __name__ == "__main__":
    main()
