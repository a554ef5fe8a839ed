"""LLVM IR as text: types, instructions, conversions; knows no loop IR."""
