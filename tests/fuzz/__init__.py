"""Bad inputs by the hundred: each gives a right answer or a refusal in words."""
