"""One judge a file."""
