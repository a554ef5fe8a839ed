"""Models whose sizes vary from run to run: compiled at a few sizes, written as formulas of them."""
