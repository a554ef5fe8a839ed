"""What operators compute, one a file; how they run is in `search_space.schedules`."""
