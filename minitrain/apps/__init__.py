"""The command line, one file a command; none imports torch before it runs."""
