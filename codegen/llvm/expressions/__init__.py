"""An expression of the loop IR as an LLVM value: addresses, loads, registers, arithmetic."""
