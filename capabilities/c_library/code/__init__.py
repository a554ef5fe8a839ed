"""The library's own functions, in LLVM's language, from a `Plan`."""
