"""Encoding of inputs as rows of tokens: texts, pairs, questions, chats and pictures."""
