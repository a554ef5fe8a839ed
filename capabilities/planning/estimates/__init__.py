"""What one step of one deployment costs in time and memory."""
