"""Layer-wise relevance propagation (LRP) as a second backward pass over the graph of an unmodified model.

``rules.py`` and ``attnlrp.py`` hold the rules and ``rule_sets.py`` the tables of them, in pure torch.
``tracing.py`` wraps the ``forward`` of a live model's modules while they run.
"""
