"""What a model thinks before it answers: found in its text, and told apart from it."""
