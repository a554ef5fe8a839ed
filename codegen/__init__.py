"""A program becomes code: LLVM for CPUs, instruction streams for accelerators."""
