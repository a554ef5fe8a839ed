"""What one search learns from its own trials and knows before them: sources, predictor, pace."""
