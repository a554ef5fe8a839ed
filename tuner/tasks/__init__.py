"""The nouns of a job and the contracts a search is plugged together from: task, options, strategy,
scheduler, ledger, features, cancellation.
"""
