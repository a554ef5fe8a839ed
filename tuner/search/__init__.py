"""One search's rounds: open a task, propose, measure, commit, learn; and the operators of
evolution it shares with strategies.
"""
