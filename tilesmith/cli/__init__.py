"""What all commands share: options, help, values, failures, completion; no command but
completion's.
"""
