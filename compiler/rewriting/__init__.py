"""The tools that change graphs: `Pass`, `Rewriter`, and the contracts of the rule registries
(lowering, decompositions, contrib).
"""
