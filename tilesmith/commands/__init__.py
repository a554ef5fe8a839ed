"""One module for each command, imported when the command is used (see
tilesmith/command_line.py).
"""
