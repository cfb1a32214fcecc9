"""The engine behind HTTP, with OpenAI's interface: `python -m minitrain serve`."""
