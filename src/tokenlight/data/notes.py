"""How notes begin that hold for all texts, so that pictures can show them once, and briefly."""

# The recommended method was taken. What was measured follows, which is the same for every text.
AUTO_NOTE = "method='auto': "
# It does not support the model, so another one was taken. The reason follows.
FALLBACK_NOTE = "method='auto' took "
# Two texts were given to a classifier that may not be trained on pairs.
PAIR_NOTE = "a pair of texts: "
# What the weights of a file became when they were read, and what was not read.
WEIGHTS_NOTE = "the weights of "
UNREAD_TENSORS_NOTE = "transformers does not read "
