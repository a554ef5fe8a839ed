"""From what is computed to a program: stages, schedules, layouts, lowering."""
