"""Space and schedules of matrix products, and what PSUM's sums begin with."""
