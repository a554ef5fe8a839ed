"""Learned models over plain arrays, whatever the task: their contract, what they share, their
inputs from knobs, acquisition.
"""
