"""What a library's functions return."""

STATUS = (
    ("OK", "done"),
    ("ARGUMENT", "an argument is NULL, out of range or not aligned"),
    ("MEMORY", "there is not enough memory"),
    ("THREADS", "the system does not start so many threads"),
    ("WEIGHTS", "the file of weights cannot be read, or is not this model's"),
    ("NOT_READY", "the weights are not there: call init first"),
    ("INDEX", "an index is out of range"),
    ("BUSY", "the workspace is in use by another run"),
    ("PROCESSOR", "this processor lacks instructions that the library needs"),
    ("SIZES", "sizes are missing, out of range, or too large for the workspace"),
)
"""What functions return, by number: a name for the header, and a sentence."""

CODES = {name: number for number, (name, _) in enumerate(STATUS)}

OK, ARGUMENT, MEMORY, THREADS, WEIGHTS, NOT_READY, INDEX, BUSY, PROCESSOR, SIZES = CODES.values()
