"""What a user runs: suites, skills and rankings become a run on the workers, and a run becomes files."""
