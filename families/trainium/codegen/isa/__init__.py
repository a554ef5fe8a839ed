"""The instruction set of Trainium-like cores: instructions, operands, rules, text, bytes."""
