"""Which of many machines are believed: control kernels, statistical evidence, standing, watch."""
