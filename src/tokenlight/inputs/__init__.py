"""What a person gives, as rows of tokens: texts, pairs, questions, chats and pictures."""
