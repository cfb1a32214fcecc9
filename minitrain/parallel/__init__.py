"""Many ranks: launching them, what they say to each other, and what they train together."""
