"""Skills, and ranked candidates for them."""
