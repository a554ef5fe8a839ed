"""Loom: an invented family of accelerators, kept small, that says what adding a family takes.

A loom has one scratchpad (`pad`), one unit that works on rows of fp32 words, and nothing else: no
partitions, no semaphores, no queues. Instructions run one after another, each in a time that is
known beforehand. A family is a room on every floor; here they are the files of one package:

    machine.py        memories and instructions, as the loop IR sees them; the target `loom1`
    schedules.py      how operators are run
    instructions.py   the instruction stream, and what an instruction costs
    generation.py     a program becomes instructions
    simulator.py      what they compute, and how long it takes
    backend.py        whole models

Importing the package registers all of it. Who installs it names it under the entry point group
`tilesmith.extensions` and imports nothing.
"""

from . import backend, machine, schedules, simulator

__all__ = ["backend", "machine", "schedules", "simulator"]
