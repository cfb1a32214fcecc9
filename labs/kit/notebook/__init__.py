"""The notebook's side: the lab, its progress, the machine it runs on, JupyterLab's settings."""
