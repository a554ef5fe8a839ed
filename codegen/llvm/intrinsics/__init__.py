"""An intrinsic (or prefetch) of the loop IR a file: its LLVM instructions."""
