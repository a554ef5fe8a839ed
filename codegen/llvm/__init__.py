"""The loop IR as LLVM IR: explicit vectors, accumulators in registers, threads by slices."""
