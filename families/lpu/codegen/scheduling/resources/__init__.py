"""What of the chip is taken, when and where."""
