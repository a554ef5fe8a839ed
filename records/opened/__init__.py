"""An open database: transactions, damaged rows, and the stores of jobs and machines over them."""
