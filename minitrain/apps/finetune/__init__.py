"""`minitrain finetune`: options, the model, the text, and the run."""
