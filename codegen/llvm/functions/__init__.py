"""Elementary functions and number formats, as sequences of LLVM instructions."""
