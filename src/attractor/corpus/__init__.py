"""Read documents from files, folders and the Hub, turn them into tokens, and store the tokens on disk."""
