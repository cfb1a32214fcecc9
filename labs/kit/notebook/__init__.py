"""What a notebook sees: the lab, its progress, the machine it runs on, JupyterLab's settings."""
