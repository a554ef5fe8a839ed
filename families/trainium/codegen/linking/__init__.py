"""Kernels that run one after another become one program."""
